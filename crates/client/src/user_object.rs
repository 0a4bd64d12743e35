//! Objects of the application that graphs keep alive: numbers of references with a destructor.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::graph::HostWork;
use crate::handle::{Context, Graph, INDEX_MAX, UserObject};
use crate::table::Table;

/// Most references that one call adds or removes.
const COUNT_MAX: u32 = i32::MAX.cast_unsigned();

/// Something of the application's.
#[derive(Debug)]
struct UserObjectState {
    handle: UserObject,
    destroy: HostWork,
    references: Mutex<u64>,
}

/// Work for a thread that exists while there is some.
#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    is_served: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), is_served: false }
    }
}

/// All of a session's objects.
pub(crate) struct UserObjects {
    live: Table<UserObjectState>,
    /// Destructors whose object nobody refers to any more.
    due: Mutex<Queue<HostWork>>,
    /// References of graphs that may be running in a context.
    launched: Mutex<Queue<(Arc<ContextState>, References)>>,
}

impl fmt::Debug for UserObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserObjects").field("live", &self.live).finish_non_exhaustive()
    }
}

/// References of one holder to one object, given back when dropped.
#[derive(Debug)]
struct Share {
    objects: Arc<UserObjects>,
    object: Arc<UserObjectState>,
    count: u64,
}

impl Share {
    /// As many references again, for another holder.
    fn again(&self) -> Self {
        *lock(&self.object.references) += self.count;
        let (objects, object) = (Arc::clone(&self.objects), Arc::clone(&self.object));
        Self { objects, object, count: self.count }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // What is held cannot have been given back already: that is refused.
        let _held = self.objects.give_back(&self.object, self.count);
    }
}

/// What a graph refers to.
#[derive(Debug, Default)]
pub(crate) struct References(BTreeMap<UserObject, Share>);

impl References {
    /// The same for another graph.
    pub(crate) fn again(&self) -> Self {
        Self(self.0.iter().map(|(handle, share)| (*handle, share.again())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, mut share: Share) {
        if let Some(held) = self.0.get_mut(&share.object.handle) {
            held.count += std::mem::take(&mut share.count);
        } else {
            self.0.insert(share.object.handle, share);
        }
    }

    fn remove(&mut self, object: UserObject, count: u64) -> Result<(), Status> {
        let held = self.0.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
        if held.count < count {
            return Err(Status::INVALID_VALUE);
        }
        if held.count == count {
            self.0.remove(&object);
            return Ok(());
        }
        held.count -= count;
        held.objects.give_back(&held.object, count)
    }
}

impl UserObjects {
    pub(crate) fn new() -> Self {
        let live = Table::new(INDEX_MAX);
        Self { live, due: Mutex::default(), launched: Mutex::default() }
    }

    fn find(&self, object: UserObject) -> Result<Arc<UserObjectState>, Status> {
        self.live.get(object).ok_or(Status::INVALID_VALUE)
    }

    fn give_back(
        self: &Arc<Self>,
        object: &Arc<UserObjectState>,
        count: u64,
    ) -> Result<(), Status> {
        {
            let mut references = lock(&object.references);
            *references = references.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
            if *references > 0 {
                return Ok(());
            }
        }
        if self.live.remove(object.handle).is_some() {
            self.destroy(object.destroy.clone());
        }
        Ok(())
    }

    /// Has an object destroyed. Not on this thread: it is inside a call of the driver, and may hold
    /// what the destructor needs.
    fn destroy(self: &Arc<Self>, destroy: HostWork) {
        let objects = Arc::clone(self);
        serve(&self.due, destroy, move || {
            while let Some(destroy) = next(&objects.due) {
                (destroy.0)();
            }
        });
    }

    /// Gives references back when the work that a context has now has ended.
    pub(crate) fn give_back_later(self: &Arc<Self>, context: &Arc<ContextState>, held: References) {
        let objects = Arc::clone(self);
        serve(&self.launched, (Arc::clone(context), held), move || {
            while let Some((context, held)) = next(&objects.launched) {
                let wait = Command::ContextSynchronize { context: context.id };
                // A context that is gone or has faulted runs nothing either.
                let _ended = context.session.call(&wait);
                drop(held);
            }
        });
    }
}

/// Queues work, and makes a thread for it unless one is at it.
fn serve<T>(queue: &Mutex<Queue<T>>, work: T, thread: impl Fn() + Send + Clone + 'static) {
    let mut held = lock(queue);
    held.waiting.push_back(work);
    if std::mem::replace(&mut held.is_served, true) {
        return;
    }
    drop(held);
    let builder = std::thread::Builder::new().name("weft-user-objects".into());
    if builder.spawn(thread.clone()).is_err() {
        // Without a thread, here.
        thread();
    }
}

/// The next work; the thread ends with the last.
fn next<T>(queue: &Mutex<Queue<T>>) -> Option<T> {
    let mut queue = lock(queue);
    let work = queue.waiting.pop_front();
    queue.is_served = work.is_some();
    work
}

/// Checks a number of references.
fn counted(count: u32) -> Result<u64, Status> {
    if count == 0 || count > COUNT_MAX {
        return Err(Status::INVALID_VALUE);
    }
    Ok(count.into())
}

impl Client {
    /// Makes an object with `count` references of the caller; `destroy` is called on a thread of
    /// its own when there are no more.
    ///
    /// # Errors
    /// `INVALID_VALUE` for no or too many references, `OUT_OF_MEMORY`.
    pub fn user_object_create(&self, destroy: HostWork, count: u32) -> Result<UserObject, Status> {
        let references = Mutex::new(counted(count)?);
        let made = self.user_objects.live.insert(0, |_, handle| UserObjectState {
            handle,
            destroy,
            references,
        });
        made.map(|(handle, _)| handle).map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Adds references of the caller.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an object that is gone, or no or too many references.
    pub fn user_object_retain(&self, object: UserObject, count: u32) -> Result<(), Status> {
        let count = counted(count)?;
        let object = self.user_objects.find(object)?;
        let mut references = lock(&object.references);
        // The last reference may have gone since the look-up.
        if *references == 0 {
            return Err(Status::INVALID_VALUE);
        }
        *references += count;
        Ok(())
    }

    /// Gives references of the caller back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an object that is gone, or more references than there are.
    pub fn user_object_release(&self, object: UserObject, count: u32) -> Result<(), Status> {
        let count = counted(count)?;
        let object = self.user_objects.find(object)?;
        self.user_objects.give_back(&object, count)
    }

    /// Has a graph, and what is cloned or instantiated from it, keep an object: with references of
    /// its own, or with those of the caller.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles, or no or too many references.
    pub fn graph_retain(
        &self,
        graph: Graph,
        object: UserObject,
        count: u32,
        is_moved: bool,
    ) -> Result<(), Status> {
        let graph = self.graph(graph)?;
        if !is_moved {
            self.user_object_retain(object, count)?;
        }
        let (count, object) = (counted(count)?, self.user_objects.find(object)?);
        let objects = Arc::clone(&self.user_objects);
        lock(&graph.held).add(Share { objects, object, count });
        Ok(())
    }

    /// Gives back what an instantiated graph of `context` held, once its launches have ended.
    pub(crate) fn let_go(
        &self,
        context: Context,
        is_launched: bool,
        held: impl Iterator<Item = References>,
    ) {
        let context = self.contexts.get(context).filter(|_| is_launched);
        for held in held {
            if let Some(context) = &context {
                self.user_objects.give_back_later(context, held);
            }
        }
    }

    /// Gives references of a graph back.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles, or more references than the graph has.
    pub fn graph_release(
        &self,
        graph: Graph,
        object: UserObject,
        count: u32,
    ) -> Result<(), Status> {
        lock(&self.graph(graph)?.held).remove(object, counted(count)?)
    }
}
