//! A thread pool for kernels, whose idle threads spin for a while before they sleep.
//!
//! The kernels for one token take 20 to 400 µs each and follow each other within a few dozen µs. Waking a sleeping
//! thread takes about as long as that (measured: benches/RESULTS.md).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::sync::{Condvar, Mutex, MutexGuard, UnsafeCell, spin_loop, yield_now};

/// How long a helper spins before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);

/// Mask of the gate's lowest bits, which count the helpers inside the job.
const INSIDE: usize = OPEN - 1;
/// Bit of the gate that is set while the job may be joined.
const OPEN: usize = 1 << 15;
/// Increment between job numbers, which are stored in the gate's other bits.
const NEXT: usize = OPEN << 1;

/// A function called with each task's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The pool's helper threads, which one thread uses at a time.
pub(crate) struct Team {
    /// Whether a thread is using the team.
    taken: AtomicBool,
    /// The job number, whether the job may be joined, and the number of helpers in it.
    gate: AtomicUsize,
    job: UnsafeCell<Option<*const Work<'static>>>,
    /// Number of tasks in the job.
    count: AtomicUsize,
    /// The first task that has not been started.
    next: AtomicUsize,
    /// Panic payload of the first helper that panicked in this job.
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    /// Held by a helper from its last check of the gate until it sleeps.
    mutex: Mutex<()>,
    wake: Condvar,
}

// SAFETY: all fields but `job` can be shared. `job` is written by the one thread that holds `taken`, while the gate is
// closed and no helper is inside. It is read only by helpers inside, which entered through the gate (acquire) after it
// was opened following the write (release). The gate is closed, and seen empty (acquire), before the next write.
unsafe impl Sync for Team {}

impl Team {
    /// The process's team, one thread smaller than rayon's pool; `None` if that leaves no helpers.
    pub(crate) fn get() -> Option<&'static Team> {
        static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();
        *TEAM.get_or_init(|| {
            let helpers = (rayon::current_num_threads() - 1).min(INSIDE);
            (helpers > 0).then(|| Team::start(helpers))
        })
    }

    /// Starts a team that lives as long as the process.
    fn start(helpers: usize) -> &'static Team {
        let team: &'static Team = Box::leak(Box::new(Team::without_helpers()));
        for _ in 0..helpers {
            // If a thread can't be started, the team has one helper fewer.
            let _ = std::thread::Builder::new().name("hooklens-kernels".into()).spawn(|| team.worker_loop());
        }
        team
    }

    fn without_helpers() -> Team {
        Team {
            taken: AtomicBool::new(false),
            gate: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            count: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            failure: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            mutex: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Runs `work(0)` to `work(count - 1)`, in any order, on this thread and the helpers. Returns `false` without
    /// running anything if the team is already in use.
    ///
    /// # Panics
    /// With the payload of `work`'s panic, whichever thread it happened on.
    pub(crate) fn run(&self, count: usize, work: &Work<'_>) -> bool {
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let guard = JobGuard(self);
        // SAFETY: only the lifetime in the type changes, and no helper uses the pointer after `guard` has waited for
        // them.
        let work_for_all: *const Work<'static> = unsafe { std::mem::transmute::<*const Work<'_>, _>(work) };
        // SAFETY: this thread holds the team, the gate is closed and no helper is inside.
        self.job.with_mut(|job| unsafe { *job = Some(work_for_all) });
        self.count.store(count, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        let number = (self.gate.load(Ordering::Relaxed) & !(NEXT - 1)).wrapping_add(NEXT);
        self.gate.store(number | OPEN, Ordering::Release);
        // Pairs with the fence in `sleep`: either this thread sees the sleeper, or the sleeper sees the open gate.
        fence(Ordering::SeqCst);
        let sleepers = self.sleepers.load(Ordering::Relaxed);
        if sleepers > 0 {
            // Taking the lock once ensures that every helper about to sleep has either checked the gate already or will
            // see it open. Holding it longer would make each woken helper wait for the rest to be woken.
            drop(lock(&self.mutex));
            (0..sleepers.min(count.saturating_sub(1))).for_each(|_| self.wake.notify_one());
        }
        self.do_tasks(work);
        self.close();
        // Take the failure before the team is released, so that a later job's failure is not mistaken for this one's.
        let failure = lock(&self.failure).take();
        drop(guard);
        if let Some(failure) = failure {
            resume_unwind(failure);
        }
        true
    }

    /// Closes the gate and waits for the helpers inside to leave.
    fn close(&self) {
        self.gate.fetch_and(!OPEN, Ordering::Relaxed);
        let mut turn = 0_u32;
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            turn = turn.wrapping_add(1);
            // If another program took a helper's core, yielding may let the helper run.
            if turn.is_multiple_of(1 << 10) { yield_now() } else { spin_loop() }
        }
    }

    /// Runs tasks that no thread has started, until there are none.
    fn do_tasks(&self, work: &Work<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        loop {
            match self.next.fetch_add(1, Ordering::Relaxed) {
                task if task < count => work(task),
                _ => return,
            }
        }
    }

    /// Main loop of a helper thread.
    fn worker_loop(&self) {
        let mut done = 0;
        loop {
            done = self.help_with_next(done);
        }
    }

    /// Waits for a job other than `done`, helps with it, and returns its number.
    fn help_with_next(&self, done: usize) -> usize {
        let number = self.join(done);
        // SAFETY: this helper is inside, so it reads what was written before the gate was opened.
        if let Some(work) = self.job.with(|job| unsafe { *job }) {
            // SAFETY: the job's owner waits for the helpers inside before `work` goes out of scope.
            let work = unsafe { &*work };
            if let Err(failure) = catch_unwind(AssertUnwindSafe(|| self.do_tasks(work))) {
                let mut first = lock(&self.failure);
                match *first {
                    None => *first = Some(failure),
                    // Dropping the payload might panic, while the owner waits for this helper to leave.
                    Some(_) => std::mem::forget(failure),
                }
            }
        }
        self.gate.fetch_sub(1, Ordering::Release);
        number
    }

    /// Waits for a job other than `done`, joins it, and returns its number.
    fn join(&self, done: usize) -> usize {
        let mut since = Instant::now();
        for turn in 1_usize.. {
            let gate = self.gate.load(Ordering::Relaxed);
            if self.wants_help(gate, done) {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return gate & !(NEXT - 1);
                }
            } else if is_over(turn, since) {
                self.sleep(done);
                since = Instant::now();
            } else {
                spin_loop();
            }
        }
        unreachable!("the loop does not end")
    }

    /// Sleeps until there is a job other than `done`.
    fn sleep(&self, done: usize) {
        let mut guard = lock(&self.mutex);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !self.wants_help(self.gate.load(Ordering::Acquire), done) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a job other than `done` may be joined and has tasks left. If it has none, helpers would only contend for
    /// the gate.
    fn wants_help(&self, gate: usize, done: usize) -> bool {
        let left = || self.next.load(Ordering::Relaxed) < self.count.load(Ordering::Relaxed);
        gate & OPEN != 0 && gate & !(NEXT - 1) != done && left()
    }
}

/// Whether a helper has spun long enough. In loom's model, this is true immediately, because spinning explores nothing
/// new.
fn is_over(turn: usize, since: Instant) -> bool {
    cfg!(all(test, loom)) || (turn.is_multiple_of(64) && since.elapsed() > PATIENCE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the helpers inside and releases the team, even after a panic.
struct JobGuard<'a>(&'a Team);

impl Drop for JobGuard<'_> {
    fn drop(&mut self) {
        self.0.close();
        // A helper's payload is left here only if the owner's own task panicked too, and then the caller gets the
        // owner's panic. Dropping the helper's payload might panic, which would abort the process during unwinding.
        std::mem::forget(lock(&self.0.failure).take());
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Fewer rounds under Miri, where each takes a thousand times as long.
    fn rounds(count: usize) -> usize {
        if cfg!(miri) { 5.max(count / 2000) } else { count }
    }

    #[test]
    fn every_task_is_done_once_job_after_job_and_after_sleep() {
        let team = Team::start(3);
        for round in 0..rounds(2000) {
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
        let team = Team::start(1);
        let refused = AtomicUsize::new(0);
        team.run(8, &|_| {
            refused.fetch_add(usize::from(!team.run(2, &|_| ())), Ordering::Relaxed);
        });
        assert_eq!(refused.into_inner(), 8);
        assert!(team.run(2, &|_| ()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::start(2);
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
        let team = Team::start(2);
        let calls = |failing: bool| {
            for _ in 0..rounds(50_000) {
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

    /// A panic payload that panics when dropped, as a caller's own type may.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                resume_unwind(Box::new("dropped"));
            }
        }
    }

    #[test]
    fn payloads_that_panic_when_dropped_hang_nobody() {
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let team = Team::start(2);
            for _ in 0..rounds(2000) {
                let started = AtomicUsize::new(0);
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    team.run(3, &|_| {
                        started.fetch_add(1, Ordering::Relaxed);
                        // Ensures that several threads panic in one job.
                        while started.load(Ordering::Relaxed) < 3 {
                            std::thread::yield_now();
                        }
                        resume_unwind(Box::new(Bomb));
                    })
                }));
                std::mem::forget(failed.unwrap_err());
            }
            // All helpers are still there, and no payload is left over for this job.
            let together = AtomicUsize::new(0);
            team.run(3, &|_| {
                together.fetch_add(1, Ordering::Relaxed);
                while together.load(Ordering::Relaxed) < 3 {
                    std::thread::yield_now();
                }
            });
            sender.send(()).unwrap();
        });
        let patience = Duration::from_secs(if cfg!(miri) { 600 } else { 60 });
        assert!(done.recv_timeout(patience).is_ok(), "the team hangs");
    }
}

/// Model test of the gate under all orderings of its operations:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p hooklens-kernels --lib model`.
#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::model::Builder;
    use loom::thread;

    use super::*;

    /// A barrier between helpers and owner.
    struct Meeting {
        arrived: Mutex<usize>,
        all: usize,
        complete: Condvar,
    }

    impl Meeting {
        fn wait(&self) {
            let mut arrived = lock(&self.arrived);
            *arrived += 1;
            self.complete.notify_all();
            while *arrived < self.all {
                arrived = self.complete.wait(arrived).unwrap();
            }
        }

        fn is_over(&self) -> bool {
            *lock(&self.arrived) == self.all
        }
    }

    /// Runs `jobs` with the given number of helpers, exploring all orderings with at most `preemptions` preemptions.
    /// Then all threads meet in a last job, after which the helpers leave; a helper that slept through it would show up
    /// as a deadlock.
    fn check(helpers: usize, preemptions: usize, jobs: impl Fn(&Team) + Send + Sync + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.max_branches = 10_000;
        builder.check(move || {
            let team = Arc::new(Team::without_helpers());
            let meeting = Meeting { arrived: Mutex::new(0), all: helpers + 1, complete: Condvar::new() };
            let meeting = Arc::new(meeting);
            let helper = || {
                let (team, meeting) = (team.clone(), meeting.clone());
                move || {
                    let mut done = 0;
                    while !meeting.is_over() {
                        done = team.help_with_next(done);
                    }
                }
            };
            let threads: Vec<_> = (0..helpers).map(|_| thread::spawn(helper())).collect();
            jobs(&team);
            assert!(team.run(helpers + 1, &|_| meeting.wait()));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Runs a job in which each task runs once and writes a value that the owner reads without synchronization.
    fn job(team: &Team, count: usize) {
        struct Outcomes(Vec<UnsafeCell<usize>>);
        // SAFETY: each task writes its own element; loom fails the test if two threads access the same one.
        unsafe impl Sync for Outcomes {}
        let outcomes = Outcomes((0..count).map(|_| UnsafeCell::new(0)).collect());
        let seen = &outcomes;
        // SAFETY: as above.
        assert!(team.run(count, &move |task| seen.0[task].with_mut(|outcome| unsafe { *outcome += 1 })));
        // SAFETY: as above.
        outcomes.0.iter().for_each(|outcome| outcome.with(|outcome| assert_eq!(unsafe { *outcome }, 1)));
    }

    #[test]
    fn one_helper_and_a_job() {
        check(1, 2, |team| job(team, 2));
    }

    #[test]
    fn one_helper_and_two_jobs() {
        check(1, 1, |team| (0..2).for_each(|_| job(team, 2)));
    }

    #[test]
    fn two_helpers_and_a_job() {
        check(2, 1, |team| job(team, 2));
    }

    #[test]
    fn a_helpers_panic_is_its_owners() {
        check(1, 2, |team| {
            let failed = catch_unwind(AssertUnwindSafe(|| team.run(2, &|_| resume_unwind(Box::new("this one")))));
            assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"this one"));
        });
    }

    #[test]
    fn a_team_at_work_is_refused() {
        check(1, 2, |team| assert!(team.run(1, &|_| assert!(!team.run(2, &|_| ())))));
    }
}
