//! Recording some positions equals slicing the recording of all of them.

use hooklens::PaddingSide;
use hooklens::activations::Stage;
use hooklens::hook::Axis;
use hooklens::prelude::*;
use hooklens::{Error, HookError};
use hooklens_hooks::{Provenance, ResolvePositions};
use ndarray::{ArrayD, stack};
use proptest::prelude::*;

use crate::support::{any_config, any_row, cases, distance, random_model, rounding, values};
use hooklens_model::config::Layers;

const POINTS: &str = "*hook_{resid_post,pattern,z,scale,rot_q}";

/// The columns of each row that contain tokens.
fn real(tokens: &Tokens) -> Vec<Vec<usize>> {
    let [batch, len] = tokens.shape();
    let is_real = |row: usize, column: usize| tokens.mask().is_none_or(|mask| mask[row * len + column]);
    (0..batch).map(|row| (0..len).filter(|column| is_real(row, *column)).collect()).collect()
}

/// For each row of `whole`, these positions of an axis.
fn sliced(whole: &ArrayD<f32>, axis: usize, places: &[Vec<usize>]) -> ArrayD<f32> {
    let rows = whole.axis_iter(ndarray::Axis(0)).zip(places);
    let rows: Vec<_> = rows.map(|(row, places)| row.select(ndarray::Axis(axis - 1), places)).collect();
    let views: Vec<_> = rows.iter().map(|row| row.view()).collect();
    stack(ndarray::Axis(0), &views).unwrap()
}

/// A position below `len`, counted from the start or the end.
fn counted(pick: usize, len: usize, from_end: bool) -> (isize, usize) {
    let place = pick % len;
    (if from_end { place as isize - len as isize } else { place as isize }, place)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(60) })]

    /// Recording lists of positions, or one position per row, in padded batches: every point equals a slice of the
    /// whole recording.
    #[test]
    fn kept_positions_are_slices(
        config in any_config(), seed in any::<u64>(), rows in prop::collection::vec(any_row(2..7), 1..4), left: bool,
        picks in prop::collection::vec((0..6usize, any::<bool>()), 1..4), by_row: bool,
    ) {
        let model = random_model(config, seed);
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let tokens = Tokens::padded(&rows, 0, side).unwrap();
        let (real, shortest) = (real(&tokens), rows.iter().map(Vec::len).min().unwrap());
        let (record, places): (Record, Vec<Vec<usize>>) = if by_row {
            let asked: Vec<_> = real.iter().enumerate()
                .map(|(row, columns)| counted(picks[row % picks.len()].0, columns.len(), picks[row % picks.len()].1))
                .collect();
            let places = asked.iter().zip(&real).map(|((_, place), columns)| vec![columns[*place]]).collect();
            (Record::new(POINTS).positions(Positions::of_rows(asked.iter().map(|(asked, _)| *asked))), places)
        } else {
            let asked: Vec<isize> = picks.iter().map(|(pick, from_end)| counted(*pick, shortest, *from_end).0).collect();
            let of_row = |columns: &Vec<usize>| {
                let place = |n: isize| if n < 0 { (n + columns.len() as isize) as usize } else { n as usize };
                asked.iter().map(|n| columns[place(*n)]).collect()
            };
            (Record::new(POINTS).positions(&asked[..]), real.iter().map(of_row).collect())
        };
        let whole = model.record(&tokens, POINTS).unwrap();
        let kept = model.record(&tokens, record).unwrap();
        let mut compared = 0;
        for (name, activation) in kept.iter() {
            let along = whole.axes(name).unwrap().iter().position(|axis| matches!(axis, Axis::Pos | Axis::Query));
            let Some(axis) = along else { continue };
            let all = whole.activation(name).unwrap().to_ndarray().unwrap();
            let apart = distance(&activation.to_ndarray().unwrap(), &sliced(&all, axis, &places));
            prop_assert!(apart <= rounding(), "{}: {}", name, apart);
            compared += 1;
        }
        prop_assert!(compared >= 4);
        prop_assert_eq!(kept.rows_recorded(), [rows.len(), places[0].len()]);
    }

    /// An analysis of some positions equals the slice of the analysis of all, and nested selections compose.
    #[test]
    fn analyses_of_positions_are_slices(
        config in any_config(), seed in any::<u64>(), list in prop::collection::vec(-5..5isize, 1..4),
        of_rows in prop::collection::vec(-5..5isize, 2..3),
    ) {
        prop_assume!(!config.stream_is_normalized());
        let model = random_model(config, seed);
        let tokens = vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8, 0, 5]];
        let cache = model.record(tokens, Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        let parts = |analysis: &hooklens::activations::Analysis<'_>| {
            let parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Apart).unwrap();
            values(&analysis.apply_ln(parts).unwrap().sum())
        };
        let whole = parts(&analysis);
        let place = |n: &isize| if *n < 0 { n + 5 } else { *n } as usize;
        let close = |given: ArrayD<f32>, expected: ArrayD<f32>| {
            let worst = (&given - &expected).iter().fold(0f32, |worst, x| worst.max(x.abs()));
            worst <= 1e-4 * expected.iter().fold(1f32, |most, x| most.max(x.abs()))
        };
        let listed: Vec<usize> = list.iter().map(place).collect();
        let some = analysis.clone().positions(list).unwrap();
        prop_assert!(close(parts(&some), sliced(&whole, 1, &[listed.clone(), listed.clone()])));
        let each: Vec<Vec<usize>> = of_rows.iter().map(|n| vec![place(n)]).collect();
        let apart = analysis.clone().positions(Positions::of_rows(of_rows.clone())).unwrap();
        prop_assert!(close(parts(&apart), sliced(&whole, 1, &each)));
        prop_assert!(close(parts(&apart.clone().rows(1..2).unwrap()), sliced(&whole.clone().slice(ndarray::s![1..2, .., ..]).to_owned().into_dyn(), 1, &each[1..])));
        let last_of_some = some.positions(-1).unwrap();
        let last = vec![*listed.last().unwrap()];
        prop_assert!(close(parts(&last_of_some), sliced(&whole, 1, &[last.clone(), last])));
        let within = analysis.positions(1..).unwrap().positions([2usize, 0]).unwrap();
        prop_assert!(close(parts(&within), sliced(&whole, 1, &[vec![3, 1], vec![3, 1]])));
    }
}

#[test]
fn what_a_row_lacks_is_named() {
    let model = random_model(TransformerConfig::new(1, 16, 4, 20, 32), 1);
    let tokens = Tokens::padded(&[vec![1, 2, 3, 4], vec![5, 6]], 0, PaddingSide::Left).unwrap();
    let message = |record: Record| match model.record(&tokens, record) {
        Err(Error::Hook(error)) => error,
        other => panic!("{other:?}"),
    };
    let all = || Record::new("*hook_resid_post");
    for (record, says) in [
        (all().positions(Positions::of_rows([3, 2])), "position 2 is not within the 2 positions of row 1"),
        (all().positions(Positions::of_rows([3usize])), "positions were given for 1 rows, but the batch has 2"),
        (all().positions([0, 3]), "position 3 is not within the 2 positions of row 1"),
        (all().positions(usize::MAX), "not within the 4 positions of row 0"),
        (all().positions(Vec::<usize>::new()), "positions [] are not within the 4 positions of row 0"),
    ] {
        let message = message(record).to_string();
        assert!(message.contains(says), "{message}");
    }
    let alone = model.record([1, 2, 3], all().positions(7)).unwrap_err().to_string();
    assert!(alone.contains("position 7 is not within the 3 positions of the run"), "{alone}");
    let message = hooklens::Positions::from([1, 2]).resolve(4).unwrap_err();
    assert!(matches!(message, HookError::NoRange { .. }), "{message}");
}
