//! Failures of writes that tests ask for.

/// A place where keeping keys and values can fail; it does where a test says so.
#[cfg(not(test))]
pub(super) fn point() -> Result<(), crate::error::CacheError> {
    Ok(())
}

#[cfg(test)]
pub(super) use tests::point;

#[cfg(test)]
mod tests;
