//! Work shared out among threads, the calling one included.

use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work(0)`, `work(1)`, ... `work(count - 1)`, in any order, over the rayon pool.
///
/// A thread outside the pool takes its share, where rayon would have it sleep until the pool's threads have woken
/// and done it all: kernels of one token take no longer than that waking.
pub(crate) fn each(count: usize, work: impl Fn(usize) + Send + Sync) {
    if count <= 1 {
        return (0..count).for_each(work);
    }
    if rayon::current_thread_index().is_some() {
        return (0..count).into_par_iter().with_max_len(1).for_each(work);
    }
    let next = AtomicUsize::new(0);
    let share = || {
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                task if task < count => work(task),
                _ => return,
            }
        }
    };
    let helpers = (rayon::current_num_threads() - 1).min(count - 1);
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| share());
        }
        share();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_task_is_done_once_inside_the_pool_and_outside() {
        let done = |count: usize| {
            let done = Mutex::new(vec![0; count]);
            each(count, |task| done.lock().unwrap()[task] += 1);
            done.into_inner().unwrap()
        };
        for count in [0, 1, 2, 7, 100] {
            assert_eq!(done(count), vec![1; count]);
            assert_eq!(rayon::scope(|_| done(count)), vec![1; count]);
        }
    }
}
