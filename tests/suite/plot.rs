//! Heatmaps of what can be shown, and words for what can't.

use hooklens::plot::{Heatmap, PlotError};
use hooklens::{LabelledArray, LabelledAxis};
use ndarray::{ArrayD, IxDyn};

fn array(shape: &[usize]) -> LabelledArray {
    let axes = shape.iter().enumerate().map(|(number, len)| LabelledAxis::numbered(format!("axis{number}"), *len));
    let values = ArrayD::from_shape_fn(IxDyn(shape), |at| at.as_array_view_sum());
    LabelledArray::new(axes, values).unwrap()
}

trait Sum {
    fn as_array_view_sum(&self) -> f64;
}

impl Sum for IxDyn {
    fn as_array_view_sum(&self) -> f64 {
        use ndarray::Dimension;
        self.slice().iter().sum::<usize>() as f64 - 1.0
    }
}

#[test]
fn two_and_three_axes_are_drawn() {
    for shape in [&[3, 5][..], &[1, 1], &[40, 200], &[5, 3, 4]] {
        let svg = Heatmap::of(&array(shape)).unwrap().title("a <title> & more").to_svg().unwrap();
        assert!(svg.contains("&lt;title&gt; &amp; more"), "{}", &svg[..500]);
        let cells: usize = shape.iter().product();
        assert!(svg.matches("<rect").count() >= cells);
        assert!(Heatmap::of(&array(shape)).unwrap().to_png().unwrap().starts_with(b"\x89PNG"));
    }
}

#[test]
fn what_cannot_be_shown_is_said() {
    let told = Heatmap::of(&array(&[2, 2, 2, 2])).unwrap_err().to_string();
    assert!(told.contains("has 4 (axis0, axis1, axis2, axis3)"), "{told}");
    assert!(Heatmap::of(&array(&[4])).is_err());
    let told = LabelledArray::new([LabelledAxis::numbered("head", 3)], ArrayD::zeros(IxDyn(&[2]))).unwrap_err();
    assert!(told.to_string().contains("[3]") && told.to_string().contains("[2]"), "{told}");
    assert!(matches!(Heatmap::of(&array(&[600, 600])), Err(PlotError::TooMany { places: 360_000, .. })));
    let map = array(&[2, 2]);
    let map = Heatmap::of(&map).unwrap();
    assert!(matches!(map.save("map.gif"), Err(PlotError::Kind { .. })));
    assert!(matches!(map.save("/no/such/folder/map.svg"), Err(PlotError::Write { .. })));
}

#[test]
fn texts_and_numbers_that_are_none_are_drawn() {
    let map = array(&[2, 2]).map(|value| if *value < 0.0 { f64::NAN } else { *value });
    let texts = ["one", "a much longer text", "", "<b>"].map(String::from).to_vec();
    let svg = Heatmap::of(&map).unwrap().texts(texts).to_svg().unwrap();
    assert!(svg.contains("one") && svg.contains("&lt;b&gt;"));
    assert!(svg.contains("#BEBEBE"), "cells without a number are grey");
}
