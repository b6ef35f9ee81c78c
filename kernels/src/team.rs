//! Threads that help with a kernel and, the work done, wait for the next one in a loop for a while before they sleep.
//!
//! The kernels of one token take 20 to 400 µs each and follow one another within a few dozen: to wake a sleeping
//! thread, or to be woken by it, takes as long as that (measured: benches/RESULTS.md).

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a helper waits in a loop before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);

/// Helpers inside the job: the gate's lowest bits.
const INSIDE: usize = OPEN - 1;
/// The gate's bit that says the job may be joined.
const OPEN: usize = 1 << 15;
/// Distance from one job's number to the next's, in the gate's other bits.
const NEXT: usize = OPEN << 1;

/// What is done for every task's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// A thread's helpers; one thread has them at a time.
pub(crate) struct Team {
    /// Whether a thread has them.
    taken: AtomicBool,
    /// The job's number, whether it may be joined, and how many helpers are in it.
    gate: AtomicUsize,
    job: UnsafeCell<Option<*const Work<'static>>>,
    /// The job's tasks.
    count: AtomicUsize,
    /// The first task nobody has begun.
    next: AtomicUsize,
    /// What a helper panicked with.
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

// SAFETY: all fields but `job` may be shared. `job` is written by the one thread that holds `taken`, while the gate is
// closed and nobody is inside, and read only by helpers inside; they got there through the gate (acquire) that was
// opened after the write (release), and it is closed, and seen empty (acquire), before the next write.
unsafe impl Sync for Team {}

impl Team {
    /// The process's team, one thread smaller than rayon's pool; `None` if that has no helpers.
    pub(crate) fn get() -> Option<&'static Team> {
        static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();
        *TEAM.get_or_init(|| {
            let helpers = (rayon::current_num_threads() - 1).min(INSIDE);
            (helpers > 0).then(|| Team::new(helpers))
        })
    }

    /// A team that lives as long as the process.
    fn new(helpers: usize) -> &'static Team {
        let team: &'static Team = Box::leak(Box::new(Team {
            taken: AtomicBool::new(false),
            gate: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            count: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            failure: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }));
        for _ in 0..helpers {
            // A thread that can't be had is one helper less.
            let _ = std::thread::Builder::new().name("hooklens-kernels".into()).spawn(|| team.help());
        }
        team
    }

    /// Does `work(0)` to `work(count - 1)`, in any order, on this thread and the helpers; `false`, and nothing done, if
    /// the team is at work already.
    ///
    /// # Panics
    /// With what `work` panicked with, on whichever thread.
    pub(crate) fn run(&self, count: usize, work: &Work<'_>) -> bool {
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let closing = Closing(self);
        *lock(&self.failure) = None;
        // SAFETY: of the type only the lifetime changes, and no helper uses the pointer after `closing` has waited.
        let work_for_all: *const Work<'static> = unsafe { std::mem::transmute::<*const Work<'_>, _>(work) };
        // SAFETY: this thread has the team, the gate is closed and nobody is inside.
        unsafe { *self.job.get() = Some(work_for_all) };
        self.count.store(count, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        let number = (self.gate.load(Ordering::Relaxed) & !(NEXT - 1)).wrapping_add(NEXT);
        // In one order with `sleepers`: either this thread sees a sleeper, or that one the open gate.
        self.gate.store(number | OPEN, Ordering::SeqCst);
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            // Whoever is about to sleep has looked at the gate by now, or will see it open. Held on to, the lock would
            // have each helper that wakes wait for the rest to be woken.
            drop(lock(&self.bed));
            (0..sleepers.min(count.saturating_sub(1))).for_each(|_| self.bell.notify_one());
        }
        self.share(work);
        self.empty();
        // Before the team is given back: the next job's failure is not this one's.
        let failure = lock(&self.failure).take();
        drop(closing);
        if let Some(failure) = failure {
            resume_unwind(failure);
        }
        true
    }

    /// Closes the gate and waits for the helpers inside.
    fn empty(&self) {
        self.gate.fetch_and(!OPEN, Ordering::Relaxed);
        let mut turn = 0_u32;
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            turn = turn.wrapping_add(1);
            // A helper whose core another program has taken needs it back.
            if turn.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    /// Does tasks that nobody has begun until there are none.
    fn share(&self, work: &Work<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        loop {
            match self.next.fetch_add(1, Ordering::Relaxed) {
                task if task < count => work(task),
                _ => return,
            }
        }
    }

    /// A helper's life.
    fn help(&self) {
        let mut done = 0;
        loop {
            done = self.join(done);
            // SAFETY: a helper inside reads what was written before the gate opened.
            if let Some(work) = unsafe { *self.job.get() } {
                // SAFETY: its owner waits for the helpers inside before it gives up the work.
                let work = unsafe { &*work };
                if let Err(failure) = catch_unwind(AssertUnwindSafe(|| self.share(work))) {
                    *lock(&self.failure) = Some(failure);
                }
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a job other than `done` and goes inside; its number.
    fn join(&self, done: usize) -> usize {
        let mut since = Instant::now();
        for turn in 1_usize.. {
            let gate = self.gate.load(Ordering::Relaxed);
            if self.wants_help(gate, done) {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return gate & !(NEXT - 1);
                }
            } else if turn.is_multiple_of(64) && since.elapsed() > PATIENCE {
                self.sleep(done);
                since = Instant::now();
            } else {
                std::hint::spin_loop();
            }
        }
        unreachable!("turns without end")
    }

    /// Sleeps until there is a job other than `done`.
    fn sleep(&self, done: usize) {
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.wants_help(self.gate.load(Ordering::SeqCst), done) {
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a job may be joined that is not the one with number `done`, and has tasks left: of many helpers, those
    /// that would come too late need not crowd the gate.
    fn wants_help(&self, gate: usize, done: usize) -> bool {
        let left = || self.next.load(Ordering::Relaxed) < self.count.load(Ordering::Relaxed);
        gate & OPEN != 0 && gate & !(NEXT - 1) != done && left()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Empties the team and gives it back, after a panic too.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.empty();
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_job_after_job_and_after_sleep() {
        let team = Team::new(3);
        for round in 0..2000_usize {
            let done: Vec<AtomicUsize> = (0..round % 9).map(|_| AtomicUsize::new(0)).collect();
            let count = done.len();
            assert!(team.run(count.max(1), &|task| {
                if let Some(done) = done.get(task) {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
            if round % 100 == 0 {
                std::thread::sleep(3 * PATIENCE);
            }
        }
    }

    #[test]
    fn a_team_at_work_takes_nothing_else_and_another_thread_is_told() {
        let team = Team::new(1);
        let refused = AtomicUsize::new(0);
        team.run(8, &|_| {
            refused.fetch_add(usize::from(!team.run(2, &|_| ())), Ordering::Relaxed);
        });
        assert_eq!(refused.into_inner(), 8);
        assert!(team.run(2, &|_| ()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2);
        for failing in 0..20 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                team.run(20, &|task| {
                    std::thread::sleep(Duration::from_micros(20));
                    assert_ne!(task, failing, "this one");
                });
            }));
            assert!(panicked.is_err());
            let sum = AtomicUsize::new(0);
            team.run(20, &|task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 190);
        }
    }

    #[test]
    fn each_caller_gets_its_own_panic_and_no_other() {
        let team = Team::new(2);
        let calls = |failing: bool| {
            for _ in 0..50_000 {
                let task = |number: usize| {
                    if failing && number == 3 {
                        resume_unwind(Box::new("this one"));
                    }
                };
                match catch_unwind(AssertUnwindSafe(|| team.run(6, &task))) {
                    Ok(ran) => assert!(!ran || !failing, "a panic was lost"),
                    Err(_) => assert!(failing, "another caller's panic"),
                }
            }
        };
        std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(|| calls(true)), scope.spawn(|| calls(false)));
            assert!(one.join().is_ok() && other.join().is_ok());
        });
    }
}
