//! All integration tests, in one program: Burn is linked once.

mod cli;
mod contract;
mod embedded;
mod hostile;
mod laws;
mod loading;
mod parity;
mod support;
mod trained;
