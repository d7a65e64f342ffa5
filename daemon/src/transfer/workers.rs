//! Threads for file operations: made when they are needed, kept a moment for the next one, gone when all is quiet.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::UnshareFlags;

use super::flow::lock;
use crate::error::{Code, Error, Result};

/// Operations at the same time. Each may hold a window of data and a stack.
const MAX_WORKERS: usize = 512;
/// How long a thread without work stays.
const KEPT: Duration = Duration::from_secs(2);
/// Nothing here recurses, and what is big is on the heap.
const STACK_BYTES: usize = 256 * 1024;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Workers").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Default for Workers {
    fn default() -> Self {
        Workers { shared: Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() }), threads: Vec::new() }
    }
}

impl Workers {
    /// Run `job` on a thread, at once.
    ///
    /// # Errors
    /// `too_many` when there are as many operations as can be, `capacity` when there is no thread to be had.
    pub fn run(&mut self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut queue = lock(&self.shared.queue);
        if queue.idle <= queue.jobs.len() {
            self.threads.retain(|thread| !thread.is_finished());
            if self.threads.len() >= MAX_WORKERS {
                return Err(Error::new(Code::TooMany, format!("{MAX_WORKERS} file operations at once")));
            }
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
            let thread = thread.spawn(move || work(&shared)).map_err(|error| Error {
                errno: error.raw_os_error(),
                ..Error::new(Code::Capacity, "no thread for a file operation")
            })?;
            self.threads.push(thread);
        }
        queue.jobs.push_back(Box::new(job));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Wait until every job is done and every thread is gone. Their flows have been told to stop.
    pub fn join(&mut self) {
        lock(&self.shared.queue).closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was told when it happened, and its call was answered.
            let _ = thread.join();
        }
        lock(&self.shared.queue).closing = false;
    }
}

fn work(shared: &Shared) {
    // The main thread changes its root and mount namespace at a reset, which the kernel allows only to the one user
    // of such a state.
    if let Err(error) = crate::init::unshare(UnshareFlags::FS) {
        eprintln!("sandlotd: a thread for files: {error}");
    }
    let mut queue = lock(&shared.queue);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = lock(&shared.queue);
            continue;
        }
        if queue.closing {
            return;
        }
        queue.idle += 1;
        let (again, waited) = shared.changed.wait_timeout(queue, KEPT).unwrap_or_else(PoisonError::into_inner);
        queue = again;
        queue.idle -= 1;
        if waited.timed_out() && queue.jobs.is_empty() {
            return;
        }
    }
}
