//! The code of the notebooks, as modules of the test suite.

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

        /// The names of all notebooks, in alphabetical order.
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
