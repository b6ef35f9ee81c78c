//! Plots of what can be drawn, and errors for what can't.

use hooklens::plot::{Colormap, Heatmap, Line, LinePlot, Picture, PlotError};
use hooklens::{LabeledArray, LabeledAxis};
use ndarray::{ArrayD, IxDyn};

use crate::svg::Element;

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
fn two_to_four_axes_are_drawn() {
    for shape in [&[3, 5][..], &[1, 1], &[40, 200], &[5, 3, 4], &[2, 3, 4, 5]] {
        let svg = Heatmap::of(&array(shape)).unwrap().title("a <title> & more").to_svg().unwrap();
        assert!(svg.contains("&lt;title&gt; &amp; more"), "{}", &svg[..500]);
        let cells: usize = shape.iter().product();
        assert!(svg.matches("<rect").count() >= cells);
        assert!(Heatmap::of(&array(shape)).unwrap().to_png(2).unwrap().starts_with(b"\x89PNG"));
    }
}

#[test]
fn what_cannot_be_shown_is_said() {
    let message = Heatmap::of(&array(&[2, 2, 2, 2, 2])).unwrap_err().to_string();
    assert!(
        message.contains("has 5 (axis0, axis1, axis2, axis3, axis4); choose an index with `.at(\"axis0\", ..)`"),
        "{message}"
    );
    assert!(Heatmap::of(&array(&[2, 2, 2, 2, 2]).at("axis0", -1).unwrap()).is_ok());
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

/// Titles of the cells of a heatmap, as places and numbers.
fn titles(picture: &Element) -> Vec<(String, f64)> {
    let groups = picture.all("g").flat_map(|group| group.all("rect"));
    let title = |cell: &Element| {
        let title = cell.all("title").next().unwrap();
        let (place, value) = title.text.rsplit_once('\n').unwrap();
        (place.to_string(), value.rsplit_once(": ").unwrap().1.parse().unwrap())
    };
    groups.map(title).collect()
}

#[test]
fn titles_of_cells_have_the_numbers_of_the_array() {
    for shape in [&[4, 6][..], &[3, 4, 6], &[2, 3, 4, 6]] {
        let signed = array(shape).map(|value| (value * 7.7).sin() * 10f64.powf(value - 4.0));
        let picture = Element::parsed(&Heatmap::of(&signed).unwrap().value("effect (logits)").to_svg().unwrap());
        let titles = titles(&picture);
        assert_eq!(titles.len(), signed.values().len());
        for (at, value) in signed.values().indexed_iter() {
            use ndarray::Dimension;
            let labels = at.slice().iter().enumerate().map(|(axis, at)| format!("axis{axis} {at}"));
            let place = labels.collect::<Vec<_>>().join(", ");
            let found: Vec<f64> = titles.iter().filter(|(title, _)| *title == place).map(|(_, value)| *value).collect();
            let [found] = found[..] else { panic!("{place} has {found:?}") };
            assert!((found - value).abs() <= 5e-6 * value.abs(), "{place}: {found} is not {value}");
        }
        assert!(picture.texts().contains(&"effect (logits)"), "the color bar says what the numbers are");
    }
}

#[test]
fn labels_of_any_characters_are_shown() {
    let hostile = ["a <b> & \"c\" 'd' ]]>", "line\nbreak\ttab", "\u{202e}\u{0}", "שלום עולם", "日本語", "", "x"];
    let axes = ["rows", "columns"].map(|name| LabeledAxis::new(name, hostile));
    let map = LabeledArray::from_values(axes, (0..49).map(f64::from)).unwrap();
    let picture = Element::parsed(&Heatmap::of(&map).unwrap().title(hostile[0]).value(hostile[1]).to_svg().unwrap());
    let texts = picture.texts();
    for text in [hostile[0], "line\\nbreak\\ttab", "שלום עולם", "日本語"] {
        assert_eq!(
            texts.iter().filter(|shown| **shown == text).count(),
            if text == hostile[0] || text.contains("line") { 3 } else { 2 }
        );
    }
    let titles = titles(&picture);
    assert_eq!(
        (titles[0].0.as_str(), titles[48].1),
        ("rows a <b> & \"c\" 'd' ]]>, columns a <b> & \"c\" 'd' ]]>", 48.0)
    );
    assert!(titles[8].0.contains("rows line\\nbreak"), "{}", titles[8].0);
}

#[test]
fn colors_have_the_given_range() {
    let map = array(&[2, 3]).map(|value| value * 2.0);
    let fills = |map: Heatmap<'_>| -> Vec<String> {
        let picture = Element::parsed(&map.to_svg().unwrap());
        picture.all("g").flat_map(|group| group.all("rect")).map(|cell| cell.attributes["fill"].clone()).collect()
    };
    let whole = fills(Heatmap::of(&map).unwrap());
    let narrow = Heatmap::of(&map).unwrap().range(-1.0, 1.0).unwrap();
    let texts = narrow.to_svg().unwrap();
    assert!(texts.contains("≥ 1.00") && texts.contains("≤ -1.00"), "what is beyond the range is said");
    assert_ne!(fills(narrow.clone()), whole);
    assert_ne!(
        fills(narrow.colormap(Colormap::Viridis)),
        fills(Heatmap::of(&map).unwrap().colormap(Colormap::Viridis))
    );
    for (least, most) in [(1.0, 1.0), (2.0, -2.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
        assert!(matches!(Heatmap::of(&map).unwrap().range(least, most), Err(PlotError::Range { .. })));
    }
}

/// The size of a PNG.
fn png_size(png: &[u8]) -> [u32; 2] {
    [16, 20].map(|at| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()))
}

#[test]
fn a_png_has_the_scale_that_is_given() {
    let map = array(&[3, 4]);
    let map = Heatmap::of(&map).unwrap().title("a title");
    let [width, height] = png_size(&map.to_png(1).unwrap());
    for scale in [2, 4] {
        assert_eq!(png_size(&map.to_png(scale).unwrap()), [width * scale, height * scale]);
    }
    let message = map.to_png(3).unwrap_err().to_string();
    assert_eq!(message, "a PNG can have 1, 2 or 4 pixels per unit; 3 was given");
}

#[test]
fn no_label_is_left_out_in_silence() {
    let map = |columns: usize, strongest: usize| {
        let axes = [
            LabeledAxis::new("sender", ["embed", "L0H0"]),
            LabeledAxis::new("receiver", (0..columns).map(|at| format!("L{at}H0.q"))),
        ];
        let value = |at: usize| if at % columns == strongest { -20.0 } else { ((at * 37) % 11) as f64 };
        LabeledArray::from_values(axes, (0..2 * columns).map(value)).unwrap()
    };
    for columns in [5, 53, 120] {
        let svg = Heatmap::of(&map(columns, 3)).unwrap().to_svg().unwrap();
        let picture = Element::parsed(&svg);
        let shown = picture.texts().into_iter().filter(|text| text.ends_with(".q")).count();
        assert_eq!(shown, columns);
        assert!(picture.texts().contains(&"receiver"));
    }
    for strongest in [0, 1, 2, 298, 299] {
        let svg = Heatmap::of(&map(300, strongest)).unwrap().to_svg().unwrap();
        let picture = Element::parsed(&svg);
        let texts = picture.texts();
        let shown = texts.iter().filter(|text| text.ends_with(".q")).count();
        assert!(texts.contains(&format!("receiver ({shown} of 300 labels, largest values)").as_str()), "{texts:?}");
        assert!(texts.contains(&format!("L{strongest}H0.q").as_str()));
    }
}

#[test]
fn a_wide_table_of_texts_is_wrapped() {
    let map = array(&[3, 70]);
    let texts: Vec<String> = (0..210).map(|at| format!("token {at}")).collect();
    let svg = Heatmap::of(&map).unwrap().texts(texts).title("lens").to_svg().unwrap();
    let picture = Element::parsed(&svg);
    assert!(picture.number("width") < 1_100.0, "{}", picture.number("width"));
    assert_eq!(titles(&picture).len(), 210);
    assert_eq!(picture.texts().iter().filter(|text| text.starts_with("token")).count(), 210);
    // Each line of the wrapped table has its labels and axis names.
    let names = picture.texts().iter().filter(|text| **text == "axis1").count();
    assert!(names > 3 && picture.texts().iter().filter(|text| **text == "axis0").count() == names);
    assert!((0..70).all(|at| picture.texts().contains(&at.to_string().as_str())));
}

#[test]
fn lines_of_arrays_and_of_numbers_are_drawn() {
    for shape in [&[7][..], &[1], &[1, 1], &[3, 9], &[21, 4], &[2, 500]] {
        let plot = LinePlot::of(&array(shape)).unwrap().title("a <title> & more").value("logit");
        let svg = plot.to_svg().unwrap();
        assert!(svg.contains("&lt;title&gt; &amp; more") && svg.contains("logit"), "{}", &svg[..500]);
        let last = format!("axis0 {}", shape[0] - 1);
        assert_eq!(svg.contains(&last), shape.len() == 2, "a line a row is named, one line is not");
        assert!(plot.to_png(2).unwrap().starts_with(b"\x89PNG"));
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
    assert!(none.to_svg().is_ok() && none.to_png(2).is_ok());
    let huge = LinePlot::new("x", "y", [Line::new("", [(f64::MIN, f64::MAX), (f64::MAX, f64::MIN), (0.0, 1e-320)])]);
    assert!(huge.unwrap().to_png(2).is_ok());
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
