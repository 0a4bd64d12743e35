/* Tasks: self-contained kernel launches that any device of a pool may run.
 *
 * A task is submitted to a virtual accelerator (`weft create NAME --tasks --device POOL`). Link with
 * -lweft_tasks. Functions return WEFT_TASKS_OK or another code; weft_tasks_error() says in words what
 * the calling thread's last failed call met. All functions may be called from any thread.
 */
#ifndef WEFT_TASKS_H
#define WEFT_TASKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_tasks_code {
    WEFT_TASKS_OK = 0,
    /* An argument of the call is null or no text, or there is no memory for it. */
    WEFT_TASKS_INVALID = 1,
    /* The node is not there, or has no such accelerator for this user. */
    WEFT_TASKS_NO_ACCELERATOR = 2,
    /* The module is not loaded. */
    WEFT_TASKS_NOT_LOADED = 3,
    /* The task is refused; nothing of it ran. */
    WEFT_TASKS_REFUSED = 4,
    /* As many tasks, or bytes, as may be outstanding are; wait for one of them. */
    WEFT_TASKS_QUEUE_FULL = 5,
    /* The task failed on the device; see weft_tasks_done.status. */
    WEFT_TASKS_FAILED = 6,
    /* The node went away before the task was done. */
    WEFT_TASKS_LOST = 7,
    /* The time is over; the task goes on. */
    WEFT_TASKS_TIMED_OUT = 8,
    /* The task was cancelled before it ran. */
    WEFT_TASKS_CANCELLED = 9
};

typedef struct weft_tasks_accelerator weft_tasks_accelerator;
typedef struct weft_tasks_module weft_tasks_module;
typedef struct weft_tasks_pending weft_tasks_pending;

enum weft_tasks_kind {
    /* A parameter that is no pointer. Copied by weft_tasks_submit. */
    WEFT_TASKS_SCALAR = 0,
    /* A buffer that the kernel reads. Copied by weft_tasks_submit. */
    WEFT_TASKS_INPUT = 1,
    /* A buffer that the kernel writes, zeros before. Written by the weft_tasks_wait that sees the
     * task done; must be there until then, or until the task is released. */
    WEFT_TASKS_OUTPUT = 2,
    /* Both. */
    WEFT_TASKS_IN_OUT = 3
};

typedef struct weft_tasks_argument {
    int32_t kind;
    void *data;
    size_t bytes;
} weft_tasks_argument;

typedef struct weft_tasks_task {
    const weft_tasks_module *module;
    const char *kernel;
    uint32_t grid[3];
    uint32_t block[3];
    /* Dynamic shared memory in bytes. */
    uint32_t shared_bytes;
    /* Not 0: weft_tasks_next tells when it is over. */
    uint32_t notify;
    /* How long it should take, in ns; 0 if nothing is known. */
    uint64_t estimate_ns;
    const weft_tasks_argument *arguments;
    size_t argument_count;
} weft_tasks_task;

typedef struct weft_tasks_done {
    /* Device time that it took, in ns. */
    uint64_t used_ns;
    /* From its submission to its end, in ns. */
    uint64_t latency_ns;
    /* How often it was on a device: more than once if it was stopped for others or lost one. */
    uint32_t runs;
    /* The CUresult of a task that failed. */
    int32_t status;
    /* The device where it ended. */
    char device[72];
} weft_tasks_done;

/* Connects to an accelerator on the node that listens at `socket`; NULL: the one that the
 * environment names (WEFT_SOCKET, WEFT_RUNTIME_DIR), or the usual one. */
int weft_tasks_open(const char *name, const char *socket, weft_tasks_accelerator **accelerator);

/* Ends the connection once its modules and tasks are released. */
void weft_tasks_close(weft_tasks_accelerator *accelerator);

/* Loads a module: PTX text or a fatbin. */
int weft_tasks_load(weft_tasks_accelerator *accelerator, const void *image, size_t bytes,
                    weft_tasks_module **module);

void weft_tasks_unload(weft_tasks_module *module);

/* Submits a task. Returns as soon as the node has looked at it. */
int weft_tasks_submit(weft_tasks_accelerator *accelerator, const weft_tasks_task *task,
                      weft_tasks_pending **pending);

/* Waits for the end of a task, for ever if `timeout_ms` is negative. `done` may be NULL. */
int weft_tasks_wait(weft_tasks_pending *pending, int64_t timeout_ms, weft_tasks_done *done);

/* A number that no other task of the accelerator's handle has. */
uint64_t weft_tasks_number(const weft_tasks_pending *pending);

/* Takes the task back if it still waits; weft_tasks_wait tells what became of it. */
void weft_tasks_cancel(weft_tasks_pending *pending);

/* Forgets a task, which goes on if it is not over. */
void weft_tasks_release(weft_tasks_pending *pending);

/* Submits a task, waits for its end, and releases it. `done` may be NULL. */
int weft_tasks_run(weft_tasks_accelerator *accelerator, const weft_tasks_task *task,
                   weft_tasks_done *done);

/* The number of a task with `notify` that is over, each once; waits for one, for ever if
 * `timeout_ms` is negative. */
int weft_tasks_next(weft_tasks_accelerator *accelerator, int64_t timeout_ms, uint64_t *number);

/* What the calling thread's last failed call met. Good until its next call. Never NULL. */
const char *weft_tasks_error(void);

#ifdef __cplusplus
}
#endif

#endif
