//! Ends the program with an error if a library panics because the system has no more memory.

use std::panic::{PanicHookInfo, set_hook, take_hook};

use super::terminal::say;

/// Parts of panic messages that mean that the system has no more memory. They come from zlib-rs, if it can't create a
/// stream, and from the standard library, if it can't start a thread.
const MESSAGES: [&str; 3] = ["left: MemError", "failed to allocate an alternative stack", "failed to spawn thread"];

/// Makes panics whose message has one of the parts in [`MESSAGES`] end the program like a failed allocation. Printing a
/// backtrace would take memory as well, and if no memory is left, the standard library would wait forever.
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
