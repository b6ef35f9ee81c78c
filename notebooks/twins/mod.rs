//! The notebooks as code, for the tests.

macro_rules! twins {
    ($($name:ident),* $(,)?) => {
        $(
            #[allow(clippy::all, clippy::unwrap_used, unused)]
            #[rustfmt::skip]
            mod $name;

            #[test]
            fn $name() {
                $name::run().unwrap();
            }
        )*

        /// Every notebook, in the order of the alphabet.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

twins!(
    across_cells,
    activation_patching,
    attention_patterns,
    attribution_graphs,
    features,
    getting_started,
    logit_lens,
    proving_circuits,
    shared_prefix
);
