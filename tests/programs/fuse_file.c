// Sends a descriptor of a file of its own file system beside a first message to each socket named
// in its arguments. The file system (FUSE, served by its parent) answers neither FLUSH nor RELEASE, so
// whoever closes the descriptor waits. Prints "sent", "refused" or "skipped" per socket, then waits
// for the end of its input.
//
//     fuse_file DIRECTORY SOCKET...
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void answer(int fuse, uint64_t unique, const void *body, size_t size) {
    char bytes[4096];
    struct fuse_out_header head = {.len = sizeof head + size, .unique = unique};
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, body, size);
    if (write(fuse, bytes, head.len) < 0) exit(1);
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr found = {.ino = node, .nlink = 1, .uid = getuid(), .gid = getgid()};
    found.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
    return found;
}

// Answers what opening a file takes, and nothing else.
static void serve(int fuse) {
    static char bytes[1 << 18];
    for (;;) {
        if (read(fuse, bytes, sizeof bytes) < 0) exit(0);
        struct fuse_in_header *head = (struct fuse_in_header *)bytes;
        if (head->opcode == FUSE_INIT) {
            struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = 31};
            out.max_write = 4096;
            answer(fuse, head->unique, &out, sizeof out);
        } else if (head->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out out = {.nodeid = 2, .attr = attributes(2)};
            answer(fuse, head->unique, &out, sizeof out);
        } else if (head->opcode == FUSE_GETATTR) {
            struct fuse_attr_out out = {.attr = attributes(head->nodeid)};
            answer(fuse, head->unique, &out, sizeof out);
        } else if (head->opcode == FUSE_OPEN) {
            struct fuse_open_out out = {.fh = 1};
            answer(fuse, head->unique, &out, sizeof out);
        }
    }
}

static void skip(const char *what) {
    printf("skipped: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    exit(0);
}

static const char *send_file(const char *path, int file) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(socket_fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(socket_fd);
        socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(socket_fd, (struct sockaddr *)&address, sizeof address) != 0) return "absent";
    }
    char space[CMSG_SPACE(sizeof file)] = {0}, byte = '\n';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){CMSG_LEN(sizeof file), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &file, sizeof file);
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL) < 0 ? "refused" : "sent";
}

int main(int count, char **words) {
    if (count < 3) return 2;
    uid_t uid = getuid();
    if (unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) skip("unshare");
    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse < 0) skip("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fuse,
             getuid(), getgid());
    if (mount("fuse", words[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0) skip("mount");
    pid_t parent = getpid();
    // The file system outlives its user, whose end waits for it, and ends with this process.
    if (fork() != 0) serve(fuse);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 0;
    close(fuse);
    char path[4096];
    snprintf(path, sizeof path, "%s/file", words[1]);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) skip("open");
    for (int i = 2; i < count; i++) {
        const char *outcome = "absent";
        for (int times = 0; times < 8; times++) outcome = send_file(words[i], file);
        printf("%s\n", outcome);
    }
    fflush(stdout);
    while (getchar() != EOF) {
    }
    _exit(0);
}
