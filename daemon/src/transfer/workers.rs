//! Threads for file operations: made when they are needed, kept a moment for the next one, gone when all is quiet.
//!
//! Few work at a time, but one that waits for its client counts as none: however many operations are held up by slow
//! clients, the next one still begins.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::UnshareFlags;

use super::lock;

/// Operations that work at the same time: enough to keep a disk busy.
const MAX_WORKING: usize = 8;
/// How long a thread without work stays.
const KEPT: Duration = Duration::from_secs(2);
/// Nothing here recurses, and what is big is on the heap.
/// And more than is ever used, since it is address space alone: the allocator of stacks keeps those of ended threads up to 40 MiB in
/// all, each with the few pages that it touched, so larger ones are fewer that are kept.
const STACK_BYTES: usize = 1024 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// Shared by the main loop and the threads.
#[derive(Default)]
pub(crate) struct Workers {
    state: Mutex<State>,
    /// There is a job, or no more will come.
    changed: Condvar,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads there are. They are detached: a handle would keep the stack of a thread that has ended.
    alive: usize,
    /// Threads that have a job and are not held up by its client.
    working: usize,
    idle: usize,
    closing: bool,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    /// Run `job` on a thread, as soon as one may work.
    pub fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.jobs.push_back(Box::new(job));
        self.call_one(&mut state);
    }

    /// Wait on `condition` as a thread that has a job; others work in its place.
    pub(super) fn wait_aside<'a, T>(
        self: &Arc<Self>,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> MutexGuard<'a, T> {
        {
            let mut state = lock(&self.state);
            state.working -= 1;
            if !state.jobs.is_empty() {
                self.call_one(&mut state);
            }
        }
        let guard = condition.wait(guard).unwrap_or_else(PoisonError::into_inner);
        lock(&self.state).working += 1;
        guard
    }

    /// Wait until every job is done and no thread is left. Their flows have been told to stop.
    pub fn join(&self) {
        let mut state = lock(&self.state);
        state.closing = true;
        self.changed.notify_all();
        while state.alive > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.closing = false;
    }

    fn call_one(self: &Arc<Self>, state: &mut State) {
        if state.idle > 0 {
            self.changed.notify_one();
        }
        if state.idle >= state.jobs.len() || state.working >= MAX_WORKING {
            return;
        }
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn(move || workers.work()) {
            Ok(_) => {
                state.working += 1;
                state.alive += 1;
            }
            // The job waits for the threads there are.
            Err(error) if state.alive > 0 => eprintln!("sandlotd: no thread for a file operation: {error}"),
            // Its call is told that it ended without an answer.
            Err(error) => {
                eprintln!("sandlotd: no thread for file operations: {error}");
                state.jobs.clear();
            }
        }
    }

    fn work(&self) {
        // The main thread changes its root and mount namespace at a reset, which the kernel allows only to the one
        // user of such a state.
        if let Err(error) = crate::namespaces::unshare(UnshareFlags::FS) {
            eprintln!("sandlotd: a thread for files: {error}");
        }
        let mut state = lock(&self.state);
        loop {
            while (state.closing || state.working <= MAX_WORKING)
                && let Some(job) = state.jobs.pop_front()
            {
                drop(state);
                job();
                state = lock(&self.state);
            }
            if state.closing && state.jobs.is_empty() {
                break;
            }
            state.working -= 1;
            state.idle += 1;
            let (again, waited) = self.changed.wait_timeout(state, KEPT).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            state.working += 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.working -= 1;
        if state.alive == 1 {
            give_memory_back();
        }
        state.alive -= 1;
        self.ended.notify_all();
    }
}

/// Let all threads allocate from one heap: each other one would keep what it once had. Called before there are any.
pub(super) fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number that the allocator looks at when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Buffers of many operations leave holes that the allocator keeps; a daemon that rests should be as small as at first.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only looks at memory that nobody uses, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
