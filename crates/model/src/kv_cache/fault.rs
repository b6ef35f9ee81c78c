//! Failure injection for tests.

/// A point where storing keys and values can fail; tests make it fail.
#[cfg(not(test))]
pub(super) fn point() -> Result<(), crate::error::CacheError> {
    Ok(())
}

#[cfg(test)]
pub(super) use tests::point;

#[cfg(test)]
mod tests;
