//! Parallel loops over the pool's threads and the calling thread.

use crate::team::Team;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Elements per task of functions of single elements or short rows.
pub const CHUNK: usize = 16 * 1024;

/// Runs `work(0)` to `work(count - 1)`, in any order. Uses the team, or rayon's pool if this is one of rayon's threads
/// or the team is busy with another thread's work.
pub(crate) fn each(count: usize, work: impl Fn(usize) + Send + Sync) {
    if count <= 1 {
        return (0..count).for_each(work);
    }
    let helped = rayon::current_thread_index().is_none() && Team::get().is_some_and(|team| team.run(count, &work));
    if !helped {
        (0..count).into_par_iter().with_max_len(1).for_each(work);
    }
}

/// Applies `work` to every item, in any order, on all threads.
///
/// ```
/// use hooklens_kernels::tasks::each_item;
/// let mut numbers = [1, 2, 3, 4, 5];
/// each_item(numbers.chunks_mut(2), |pair| pair.reverse());
/// assert_eq!(numbers, [2, 1, 4, 3, 5]);
/// ```
pub fn each_item<I>(items: I, work: impl Fn(I::Item) + Send + Sync)
where
    I: ExactSizeIterator + Send,
{
    let (count, items) = (items.len(), Mutex::new(items));
    each(count, |_| {
        let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
        item.into_iter().for_each(&work);
    });
}

/// Applies `work` to corresponding chunks of `size` elements of both slices. A single chunk stays on this thread.
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// use hooklens_kernels::tasks::each_chunk;
/// let mut to = [0; 5];
/// each_chunk(&[1, 2, 3, 4, 5], &mut to, 2, |from, to| to.iter_mut().zip(from).for_each(|(to, from)| *to = 2 * from));
/// assert_eq!(to, [2, 4, 6, 8, 10]);
/// ```
pub fn each_chunk<A: Sync, B: Send>(
    from: &[A],
    to: &mut [B],
    size: usize,
    work: impl Fn(&[A], &mut [B]) + Send + Sync,
) {
    assert_eq!(from.len(), to.len(), "input and output differ in length");
    if from.len() <= size {
        return work(from, to);
    }
    each_item(from.chunks(size).zip(to.chunks_mut(size)), |(from, to)| work(from, to));
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn work_inside_work_is_done_too() {
        let sum = Mutex::new(0);
        each(4, |outer| each(4, |inner| *sum.lock().unwrap() += 4 * outer + inner));
        assert_eq!(sum.into_inner().unwrap(), 120);
    }
}
