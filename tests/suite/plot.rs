//! Plots of what can be drawn, and errors for what can't.

use hooklens::plot::{Heatmap, Line, LinePlot, Picture, PlotError};
use hooklens::{LabeledArray, LabeledAxis};
use ndarray::{ArrayD, IxDyn};

fn array(shape: &[usize]) -> LabeledArray {
    let axes = shape.iter().enumerate().map(|(number, len)| LabeledAxis::numbered(format!("axis{number}"), *len));
    let values = ArrayD::from_shape_fn(IxDyn(shape), |at| at.as_array_view_sum());
    LabeledArray::new(axes, values).unwrap()
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
    let message = Heatmap::of(&array(&[2, 2, 2, 2])).unwrap_err().to_string();
    assert!(
        message.contains("has 4 (axis0, axis1, axis2, axis3); choose an index with `.at(\"axis0\", ..)`"),
        "{message}"
    );
    assert!(Heatmap::of(&array(&[2, 2, 2, 2]).at("axis0", -1).unwrap()).is_ok());
    assert!(array(&[2, 2]).at("axis0", 2).is_err() && array(&[2, 2]).at("axis0", -3).is_err());
    assert!(matches!(Heatmap::of(&array(&[0, 2])), Err(PlotError::Nothing)));
    assert!(Heatmap::of(&array(&[4])).is_err());
    let message = LabeledArray::new([LabeledAxis::numbered("head", 3)], ArrayD::zeros(IxDyn(&[2]))).unwrap_err();
    assert!(message.to_string().contains("[3]") && message.to_string().contains("[2]"), "{message}");
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

#[test]
fn lines_of_arrays_and_of_numbers_are_drawn() {
    for shape in [&[7][..], &[1], &[1, 1], &[3, 9], &[21, 4], &[2, 500]] {
        let plot = LinePlot::of(&array(shape)).unwrap().title("a <title> & more").value("logit");
        let svg = plot.to_svg().unwrap();
        assert!(svg.contains("&lt;title&gt; &amp; more") && svg.contains("logit"), "{}", &svg[..500]);
        let last = format!("axis0 {}", shape[0] - 1);
        assert_eq!(svg.contains(&last), shape.len() == 2, "a line a row is named, one line is not");
        assert!(plot.to_png().unwrap().starts_with(b"\x89PNG"));
    }
    let banded = Line::banded("mean", [(0.0, 1.0, 0.5, 1.5), (1.0, 2.0, 1.0, 3.0)]);
    let svg = LinePlot::new("step", "loss", [banded, Line::new("", [])]).unwrap().to_svg().unwrap();
    assert!(svg.contains("<polygon") && svg.contains("mean"));
}

#[test]
fn what_is_no_number_breaks_a_line() {
    let whole = |y: f64| {
        LinePlot::new("x", "y", [Line::new("", (0..100).map(|x| (f64::from(x), if x == 50 { y } else { 1.0 })))])
    };
    let paths = |plot: LinePlot| plot.to_svg().unwrap().matches("#0072B2").count();
    let unbroken = paths(whole(1.0).unwrap());
    for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(paths(whole(none).unwrap()), unbroken + 1);
    }
    let none = LinePlot::of(&array(&[3, 4]).map(|_| f64::NAN)).unwrap();
    assert!(none.to_svg().is_ok() && none.to_png().is_ok());
    let huge = LinePlot::new("x", "y", [Line::new("", [(f64::MIN, f64::MAX), (f64::MAX, f64::MIN), (0.0, 1e-320)])]);
    assert!(huge.unwrap().to_png().is_ok());
}

#[test]
fn what_makes_no_lines_is_said() {
    let message = |shape: &[usize]| LinePlot::of(&array(shape)).unwrap_err().to_string();
    assert!(message(&[2, 3, 4]).ends_with("has 3 (axis0, axis1, axis2); choose an index with `.at(\"axis0\", ..)`"));
    assert!(message(&[2, 3, 4, 5]).ends_with("choose an index with `.at(\"axis0\", ..)` and `.at(\"axis1\", ..)`"));
    assert!(message(&[]).ends_with("this array has 0"));
    assert!(message(&[22, 4]).contains("22 lines are more than the 21") && message(&[22, 4]).contains("along `axis0`"));
    assert!(matches!(LinePlot::of(&array(&[0, 4])), Err(PlotError::Nothing)));
    assert!(matches!(LinePlot::of(&array(&[4, 0])), Err(PlotError::Nothing)));
    assert!(matches!(LinePlot::new("x", "y", []), Err(PlotError::Nothing)));
    assert!(matches!(LinePlot::of(&array(&[300_000])), Err(PlotError::TooMany { places: 300_000, .. })));
    let plot = LinePlot::of(&array(&[4])).unwrap();
    assert!(matches!(plot.save("lines.gif"), Err(PlotError::Kind { .. })));
}
