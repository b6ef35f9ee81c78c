//! New memory for results that are written whole.

/// A vector of `len` numbers of unspecified value. Zeroing a result of several megabytes before it is written takes as
/// long as writing it.
///
/// Debug builds and Miri fill it with NaN, so that an element which is read before it is written shows.
pub fn unwritten(len: usize) -> Vec<f32> {
    if cfg!(any(debug_assertions, miri)) {
        return vec![f32::NAN; len];
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let mut numbers = Vec::<f32>::with_capacity(len);
        // SAFETY: the block is empty, but it is declared to write to any memory that its pointer reaches. So to the
        // compiler, the allocation holds some bits that the block wrote.
        unsafe { std::arch::asm!("/* {0} */", in(reg) numbers.as_mut_ptr(), options(nostack, preserves_flags)) };
        // SAFETY: `len` elements are within the capacity and initialized, see above. Any bits are a number.
        unsafe { numbers.set_len(len) };
        numbers
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    vec![0.0; len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_is_written() {
        for len in [0, 1, 1000, 1 << 20] {
            let mut numbers = unwritten(len);
            numbers.iter_mut().enumerate().for_each(|(i, number)| *number = i as f32);
            assert_eq!(numbers.len(), len);
            assert!(numbers.iter().enumerate().all(|(i, number)| *number == i as f32));
        }
    }
}
