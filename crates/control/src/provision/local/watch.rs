//! What VMs of this host write into their folders, told as it happens: files that are replaced,
//! and what is written into `status`, which is there before the first of those. A VM that prints
//! wakes nobody.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::provision::Notice;

/// What is watched of a VM.
#[derive(Debug, Clone)]
struct Watched {
    id: String,
    /// Its folder; none of its status.
    folder: Option<PathBuf>,
}

/// What is watched, by the system's numbers.
#[derive(Debug, Default)]
pub(super) struct Watch {
    watched: Mutex<BTreeMap<i32, Watched>>,
    kernel: OnceLock<OwnedFd>,
}

impl Watch {
    /// From here on `changed` is told whose folder has a new file.
    pub(super) fn start(self: &Arc<Self>, changed: Notice) -> io::Result<()> {
        let kernel = inotify::init(CreateFlags::CLOEXEC)?;
        let (watch, events) = (Arc::clone(self), kernel.try_clone()?);
        if self.kernel.set(kernel).is_err() {
            return Ok(());
        }
        let thread = thread::Builder::new().name("folders".to_owned());
        thread.spawn(move || watch.run(&events, &changed)).map(drop)
    }

    /// Watches a VM's folder, until it is gone. One that is not watched is looked at all the same.
    pub(super) fn add(&self, id: &str, folder: &Path) {
        let watched = Watched { id: id.to_owned(), folder: Some(folder.to_owned()) };
        self.put(folder, WatchFlags::MOVED_TO, watched);
    }

    fn put(&self, path: &Path, flags: WatchFlags, new: Watched) {
        let Some(kernel) = self.kernel.get() else { return };
        // What is told at once waits until it is known whose it is.
        let mut watched = self.watched();
        match inotify::add_watch(kernel, path, flags) {
            Ok(number) => drop(watched.insert(number, new)),
            Err(error) => tracing::debug!(path = %path.display(), %error, "it is not watched"),
        }
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<i32, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, events: &OwnedFd, changed: &Notice) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(events, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "folders of VMs are no longer watched");
                    return;
                }
            };
            let is_gone = event.events().contains(ReadFlags::IGNORED);
            let mut watched = self.watched();
            let found = if is_gone {
                watched.remove(&event.wd())
            } else {
                watched.get(&event.wd()).cloned()
            };
            drop(watched);
            let Some(Watched { id, folder }) = found else { continue };
            // Before anybody looks: what comes between the two is told.
            if let Some(folder) = folder.filter(|_| !is_gone) {
                let status = Watched { id: id.clone(), folder: None };
                self.put(&folder.join("status"), WatchFlags::MODIFY, status);
            }
            changed.tell(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::replace;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_new_port_and_a_new_status_are_told_and_what_is_printed_is_not() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = |id: &str| {
            let folder = scratch.path().join(id);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (one, other) = (folder("one"), folder("other"));
        let (told, heard) = mpsc::channel();
        let (watch, told) = (Arc::new(Watch::default()), Mutex::new(told));
        let notice = move |id: &str| drop(told.lock().unwrap().send(id.to_owned()));
        watch.start(Notice::new(notice)).unwrap();
        watch.add("one", &one);
        watch.add("other", &other);
        let hear = || heard.recv_timeout(PATIENCE).unwrap();
        let print = || fs::write(one.join("console.log"), "much").unwrap();
        print();
        for folder in [&other, &one] {
            fs::write(folder.join("status"), "").unwrap();
            replace(&folder.join("port.json"), b"{}").unwrap();
        }
        // In this order: had what was printed been told, it would have come first.
        assert_eq!([hear(), hear()], ["other", "one"]);
        print();
        for folder in [&other, &one] {
            let status = fs::File::options().write(true).open(folder.join("status")).unwrap();
            status.write_all_at(b"active", 0).unwrap();
        }
        assert_eq!([hear(), hear()], ["other", "one"]);
        for folder in [&one, &other] {
            fs::remove_dir_all(folder).unwrap();
            // The status and the folder.
            assert_eq!(hear(), hear());
        }
        assert!(watch.watched().is_empty());
    }
}
