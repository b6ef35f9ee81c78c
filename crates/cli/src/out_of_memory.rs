//! Ends the program with an error if a library panics because the system has no more memory.

use std::panic::{PanicHookInfo, set_hook, take_hook};

use super::terminal::say;

/// Parts of the messages of such panics: of zlib-rs, if a stream can't be created, and of the standard library, when a
/// thread starts.
const MESSAGES: [&str; 3] = ["left: MemError", "failed to allocate an alternative stack", "failed to spawn thread"];

/// Makes such panics end the program like a failed allocation. Printing a backtrace would take memory as well, and the
/// standard library waits forever if there is none.
pub(super) fn end_instead_of_panicking() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        if is_out_of_memory(panic) {
            say("error: out of memory");
            std::process::abort();
        }
        print(panic);
    }));
}

fn is_out_of_memory(panic: &PanicHookInfo<'_>) -> bool {
    panic.payload_as_str().is_some_and(|message| MESSAGES.iter().any(|own| message.contains(own)))
}
