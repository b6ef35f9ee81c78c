//! Scatter plots, bars and histograms: what is drawn, where, and which inputs are rejected.

use hooklens::plot::{Bars, ColoredText, Heatmap, Histogram, Line, LinePlot, Picture, PlotError, Scatter, Show, Shown};
use hooklens::{LabeledArray, LabeledAxis};
use hooklens_plot::HistogramBins;

use super::notebook::html;
use crate::support::program;
use crate::svg::Element;

/// Texts with characters that markup must escape.
const HOSTILE: &str = "a <b> & \"c\" 'd' ]]> \u{0}\u{7}\n\u{202e}é\u{1f600}\u{ffff}";

/// A picture parsed back, with equal size as SVG and as PNG checked.
#[track_caller]
fn drawn(svg: Result<String, PlotError>, png: Result<Vec<u8>, PlotError>) -> Element {
    let picture = Element::parsed(&svg.unwrap());
    assert_eq!(picture.name, "svg");
    let (width, height) = (picture.number("width"), picture.number("height"));
    let inner: Vec<f64> = picture.attributes["viewBox"].split_whitespace().map(|side| side.parse().unwrap()).collect();
    assert_eq!(inner, [0.0, 0.0, width * 4.0, height * 4.0]);
    let png = png.unwrap();
    let side = |at: usize| f64::from(u32::from_be_bytes(png[at..at + 4].try_into().unwrap()));
    assert_eq!((side(16), side(20)), (width * 2.0, height * 2.0), "a PNG has twice the dots");
    // Nothing starts outside the picture.
    for text in picture.all("text") {
        let (x, y) = (text.number("x"), text.number("y"));
        assert!((0.0..=inner[2]).contains(&x) && (0.0..=inner[3]).contains(&y), "{text:?}");
    }
    picture
}

fn scatter(picture: &Scatter) -> Element {
    drawn(picture.to_svg(), picture.to_png(2))
}

fn histogram(picture: &Histogram) -> Element {
    drawn(picture.to_svg(), picture.to_png(2))
}

fn bars(picture: &Bars) -> Element {
    drawn(picture.to_svg(), picture.to_png(2))
}

/// Minimum and maximum of each coordinate.
fn corners(polygon: &Element) -> [f64; 4] {
    let points = polygon.points();
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let all = || points.iter().map(of);
        (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((left, right), (top, bottom)) = (ends(|point| point.0), ends(|point| point.1));
    [left, top, right, bottom]
}

#[test]
fn points_stand_where_their_numbers_say() {
    let points = [(0.0f32, 0.0f32), (1.0, 2.0), (2.0, 1.0), (4.0, 4.0)];
    let picture = scatter(&Scatter::new("before", "after", points).unwrap().title("a title"));
    let circles: Vec<(f64, f64)> = picture.all("circle").map(|one| (one.number("cx"), one.number("cy"))).collect();
    assert_eq!(circles.len(), 4);
    // Positions are an affine function of the values, with the y axis flipped.
    let (unit_x, unit_y) = ((circles[3].0 - circles[0].0) / 4.0, (circles[3].1 - circles[0].1) / 4.0);
    assert!(unit_x > 100.0 && unit_y < -100.0);
    for ((x, y), place) in points.iter().zip(&circles) {
        let due = (circles[0].0 + unit_x * f64::from(*x), circles[0].1 + unit_y * f64::from(*y));
        assert!((place.0 - due.0).abs() <= 1.0 && (place.1 - due.1).abs() <= 1.0, "{x} {y}: {place:?} {due:?}");
    }
    let texts = picture.texts();
    for text in ["a title", "before", "after", "0", "4"] {
        assert!(texts.contains(&text), "{text} in {texts:?}");
    }
    // Ticks are where points with their values would be.
    let tick = picture.all("text").find(|text| text.text == "4" && text.attributes["text-anchor"] == "middle").unwrap();
    assert!((tick.number("x") - circles[3].0).abs() <= 1.0);
}

#[test]
fn groups_have_colors_shapes_and_names() {
    let points = |count: usize| (0..count).map(|n| (n as f64, (n * n % 11) as f64));
    let of = |count: usize| (0..count).map(|n| format!("group {}", n % 8));
    let picture = scatter(&Scatter::new("x", "y", points(24)).unwrap().groups(of(24)).unwrap());
    let names: Vec<&str> = picture.texts().into_iter().filter(|text| text.starts_with("group")).collect();
    assert_eq!(names, ["group 0", "group 1", "group 2", "group 3", "group 4", "group 5", "group 6", "group 7"]);
    // Seven groups of circles and one of squares, each with three points and a legend entry.
    assert_eq!(picture.all("circle").count(), 7 * 4);
    assert_eq!(picture.all("polygon").count(), 4);
    let colors: std::collections::BTreeSet<&str> =
        picture.all("circle").map(|one| one.attributes["fill"].as_str()).collect();
    assert_eq!(colors.len(), 7);
    // Without groups there is no legend.
    assert_eq!(scatter(&Scatter::new("x", "y", points(24)).unwrap()).all("circle").count(), 24);
    let message = Scatter::new("x", "y", points(22)).unwrap().groups((0..22).map(|n| n.to_string())).unwrap_err();
    assert_eq!(message.to_string(), "22 groups are more than the 21 that can be told apart; choose fewer");
    assert!(
        Scatter::new("x", "y", points(21)).unwrap().groups((0..21).map(|n| n.to_string())).unwrap().to_svg().is_ok()
    );
}

#[test]
fn labels_of_points_never_meet() {
    // Sixty points in a cluster: labels without space are left out, and none overlap.
    let points = (0..60).map(|n| (f64::from(n * 37 % 40), f64::from(n * 53 % 30)));
    let labels: Vec<String> = (0..60).map(|n| format!("token {n}")).collect();
    let picture = scatter(&Scatter::new("x", "y", points).unwrap().labels(&labels).unwrap());
    let shown: Vec<(f64, f64)> = picture
        .all("text")
        .filter(|text| text.text.starts_with("token"))
        .map(|text| (text.number("x"), text.number("y")))
        .collect();
    assert!((5..60).contains(&shown.len()), "{}", shown.len());
    for (number, one) in shown.iter().enumerate() {
        for other in &shown[..number] {
            // Twelve units high, and at least six letters wide.
            assert!((one.1 - other.1).abs() >= 47.0 || (one.0 - other.0).abs() >= 100.0, "{one:?} {other:?}");
        }
    }
    let note = format!("{} of 60 labels fit", shown.len());
    assert!(picture.texts().contains(&note.as_str()), "{:?}", picture.texts());
    let one = Scatter::new("x", "y", [(0.0, 0.0), (1.0, 1.0)]).unwrap().labels([HOSTILE, ""]).unwrap().title(HOSTILE);
    let picture = scatter(&one);
    assert!(picture.texts().iter().any(|text| text.starts_with("a <b> & \"c\" 'd'")), "{:?}", picture.texts());
}

#[test]
fn what_makes_no_points_is_said() {
    let two = || Scatter::new("x", "y", [(0.0, 0.0), (1.0, 1.0)]).unwrap();
    assert!(matches!(Scatter::new("x", "y", [(0.0, 0.0); 0]), Err(PlotError::Nothing)));
    assert!(matches!(
        Scatter::new("x", "y", vec![(0.0, 0.0); 250_001]),
        Err(PlotError::TooMany { places: 250_001, .. })
    ));
    for (bad, said) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let message = Scatter::new("x", "y", [(0.0, 0.0), (bad, 1.0)]).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("x of point 1, counted from 0, is {said}; only finite numbers can be drawn, so leave it out")
        );
    }
    assert_eq!(two().labels(["a"]).unwrap_err().to_string(), "1 labels were given for 2 points");
    assert_eq!(two().groups(["a", "b", "c"]).unwrap_err().to_string(), "3 groups were given for 2 points");
    assert!(matches!(two().save("points.gif"), Err(PlotError::Kind { .. })));
    assert!(matches!(two().save("/no/such/folder/points.svg"), Err(PlotError::Write { .. })));
    // Values of any magnitude can be drawn.
    for hostile in
        [[(f64::MIN, f64::MAX), (f64::MAX, f64::MIN)], [(0.0, 1e-320), (1e-320, 0.0)], [(7.0, 7.0), (7.0, 7.0)]]
    {
        scatter(&Scatter::new("x", "y", hostile).unwrap());
    }
}

#[test]
fn a_histogram_counts_every_number_once() {
    let values: Vec<f32> = (0..500).map(|n| ((n * 7919) % 1000) as f32 / 1000.0).collect();
    for bins in [1, 2, 7, 200, 2_000] {
        let made = Histogram::of("norm", values.clone()).unwrap().bins(bins).unwrap();
        assert_eq!((made.edges().len(), made.counts()[0].len()), (bins + 1, bins));
        assert_eq!(made.counts()[0].iter().sum::<usize>(), 500);
        for (bin, count) in made.counts()[0].iter().enumerate() {
            let [begin, end] = [made.edges()[bin], made.edges()[bin + 1]];
            let within = |value: &&f32| {
                let value = f64::from(**value);
                value >= begin && (value < end || bin == bins - 1 && value == end)
            };
            assert_eq!(values.iter().filter(within).count(), *count, "bin {bin} of {bins}");
        }
    }
    // As high as their counts, on one baseline, side by side.
    let made = Histogram::of("norm", [1.0, 1.1, 2.0, 3.0, 3.0, 3.1]).unwrap().bins(3).unwrap().title("a title");
    assert_eq!(made.counts(), [[2, 1, 3]]);
    let picture = histogram(&made);
    let boxes: Vec<[f64; 4]> = picture.all("polygon").map(corners).collect();
    assert_eq!(boxes.len(), 3);
    let height = |one: &[f64; 4]| one[3] - one[1];
    assert!((height(&boxes[0]) / height(&boxes[1]) - 2.0).abs() < 0.02);
    assert!((height(&boxes[2]) / height(&boxes[1]) - 3.0).abs() < 0.02);
    assert!(boxes.iter().all(|one| one[3] == boxes[0][3]) && boxes[0][2] == boxes[1][0] && boxes[1][2] == boxes[2][0]);
    assert!(picture.texts().contains(&"count") && picture.texts().contains(&"norm"));
    // An empty bin has no bar.
    let gap = Histogram::of("x", [0.0, 0.1, 10.0]).unwrap().bins(5).unwrap();
    assert_eq!((gap.counts(), histogram(&gap).all("polygon").count()), (vec![vec![2, 0, 0, 0, 1]], 2));
}

#[test]
fn series_share_their_bins() {
    let (low, high) = (vec![0.0, 1.0, 2.0], vec![2.0, 3.0, 4.0, 4.0]);
    let both = Histogram::new("loss", [("train", low), ("test <1>", high)]).unwrap().bins(4).unwrap();
    assert_eq!(both.edges(), [0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(both.counts(), [[1, 1, 1, 0], [0, 0, 1, 3]]);
    let picture = histogram(&both);
    assert!(picture.texts().contains(&"train") && picture.texts().contains(&"test <1>"));
    // A bar for each nonzero count, and one for each name.
    assert_eq!(picture.all("polygon").count(), 5 + 2);
    // A single series without a name has no legend.
    assert_eq!(histogram(&Histogram::of("x", [0.0, 1.0]).unwrap().bins(2).unwrap()).all("polygon").count(), 2);
}

#[test]
fn what_makes_no_histogram_is_said() {
    let none: [f64; 0] = [];
    assert!(matches!(Histogram::of("x", none), Err(PlotError::Nothing)));
    assert!(matches!(Histogram::new("x", [("a", none), ("b", none)]), Err(PlotError::Nothing)));
    let message = Histogram::new("x", [("a", vec![1.0]), ("b", vec![1.0, f64::NAN])]).unwrap_err().to_string();
    assert_eq!(message, "value 1 of `b`, counted from 0, is NaN; only finite numbers can be drawn, so leave it out");
    let message = Histogram::of("x", [f32::INFINITY]).unwrap_err().to_string();
    assert!(message.starts_with("value 0, counted from 0, is inf;"), "{message}");
    let message = Histogram::new("x", (0..8).map(|n| (n.to_string(), [1.0]))).unwrap_err().to_string();
    assert_eq!(message, "8 series are more than the 7 that can be told apart; choose fewer");
    let made = || Histogram::of("x", [1.0, 2.0]).unwrap();
    assert_eq!(made().bins(0).unwrap_err().to_string(), "0 bins were requested; a histogram can have 1 to 2000");
    assert!(matches!(made().bins(2_001), Err(PlotError::Bins { .. })));
    // Any finite numbers can be counted and drawn.
    for hostile in [vec![3.0], vec![3.0, 3.0], vec![f64::MIN, f64::MAX], vec![1e-320, 0.0], vec![-1e300, 0.0, 1e300]] {
        let made = Histogram::of(HOSTILE, hostile.clone()).unwrap().title(HOSTILE);
        assert_eq!(made.counts()[0].iter().sum::<usize>(), hostile.len());
        histogram(&made);
    }
}

#[test]
fn bars_begin_at_zero_and_end_at_their_numbers() {
    let values = [("one", 1.0), ("three", 3.0), ("minus two", -2.0), ("nothing", 0.0)];
    for lying in [false, true] {
        let made = Bars::new("label", "value", values).unwrap().title("a title");
        let picture = bars(&if lying { made.horizontal() } else { made });
        let boxes: Vec<[f64; 4]> = picture.all("polygon").map(corners).collect();
        assert_eq!(boxes.len(), 4);
        // From the zero line outward: up, or to the right.
        let zero = if lying { boxes[0][0] } else { boxes[0][3] };
        let out = |one: &[f64; 4]| if lying { (one[0] + one[2]) - 2.0 * zero } else { 2.0 * zero - (one[1] + one[3]) };
        let unit = out(&boxes[0]);
        assert!(unit > 50.0);
        for (one, (label, value)) in boxes.iter().zip(values) {
            assert!((out(one) - unit * value).abs() <= 4.0, "{label}: {one:?}");
        }
        // Side by side, or the first one on top, each with its label at its middle.
        for (one, (label, _)) in boxes.iter().zip(values) {
            let text = picture.all("text").find(|text| text.text == label).unwrap();
            let (middle, at) = if lying {
                ((one[1] + one[3]) / 2.0, text.number("y"))
            } else {
                ((one[0] + one[2]) / 2.0, text.number("x"))
            };
            assert!((middle - at).abs() <= 2.0, "{label}: {one:?} {text:?}");
        }
        let along = if lying { 1 } else { 0 };
        assert!(boxes.windows(2).all(|pair| pair[0][along + 2] < pair[1][along]));
    }
    // All on one side of zero: bars start at the frame, which is drawn second to last.
    let upwards = bars(&Bars::new("", "", [("a", 1.0), ("b", 2.0)]).unwrap());
    let bottom = upwards.all("polyline").flat_map(|line| line.points()).map(|(_, y)| y).fold(0.0, f64::max);
    let ticks = 16.0; // length of the ticks below the frame
    assert!(upwards.all("polygon").map(corners).all(|one| (one[3] + ticks - bottom).abs() <= 1.0));
}

#[test]
fn errors_of_bars_reach_as_far_as_they_say() {
    let made = Bars::new("label", "value", [("a", 2.0), ("b", -1.0)]).unwrap();
    let plain = bars(&made).all("polyline").count();
    let picture = bars(&made.clone().errors([1.0f32, 0.5]).unwrap());
    // A line and two ends per error bar, on an axis that includes them (and may have other ticks).
    let boxes: Vec<[f64; 4]> = picture.all("polygon").map(corners).collect();
    let unit = (boxes[0][3] - boxes[0][1]) / 2.0;
    let reach: Vec<(f64, f64)> = picture
        .all("polyline")
        .map(Element::points)
        .filter(|line| {
            line.len() == 2
                && line[0].0 == line[1].0
                && boxes.iter().any(|one| line[0].0 > one[0] && line[0].0 < one[2])
        })
        .map(|line| (line[0].1, line[1].1))
        .filter(|(from, to)| (from - to).abs() > 20.0)
        .collect();
    assert_eq!(reach.len(), 2, "{plain}");
    assert!(((reach[0].0 - reach[0].1) - 2.0 * unit).abs() <= 2.0 && ((reach[1].0 - reach[1].1) - unit).abs() <= 2.0);
    assert!(((reach[0].0 + reach[0].1) / 2.0 - boxes[0][1]).abs() <= 2.0, "about the end of the bar");
    assert!(((reach[1].0 + reach[1].1) / 2.0 - boxes[1][3]).abs() <= 2.0);
    assert_eq!(made.clone().errors([1.0]).unwrap_err().to_string(), "1 errors were given for 2 bars");
    assert_eq!(
        made.clone().errors([1.0, -0.5]).unwrap_err().to_string(),
        "the error of `b` is -0.5; it must be at least 0"
    );
    assert!(matches!(made.errors([f64::NAN, 1.0]), Err(PlotError::NotFinite { .. })));
}

#[test]
fn bars_of_arrays_and_what_makes_none() {
    let axis = |name: &str, len| LabeledAxis::numbered(name, len);
    let array = |axes: Vec<LabeledAxis>| {
        let places = axes.iter().map(|axis| axis.labels.len()).product::<usize>();
        LabeledArray::from_values(axes, (0..places).map(|place| place as f64)).unwrap()
    };
    let picture = bars(&Bars::of(&array(vec![axis("layer", 12)])).unwrap().value("effect"));
    assert_eq!(picture.all("polygon").count(), 12);
    assert!(
        picture.texts().contains(&"layer") && picture.texts().contains(&"effect") && picture.texts().contains(&"11")
    );
    let message = Bars::of(&array(vec![axis("layer", 2), axis("head", 3)])).unwrap_err().to_string();
    assert_eq!(
        message,
        "a bar plot needs one axis; this array has 2 (layer, head); choose an index with `.at(\"layer\", ..)`"
    );
    assert!(matches!(Bars::of(&array(vec![axis("layer", 0)])), Err(PlotError::Nothing)));
    assert!(matches!(
        Bars::new("", "", (0..501).map(|n| (n.to_string(), 1.0))),
        Err(PlotError::TooMany { places: 501, .. })
    ));
    let message = Bars::new("", "", [("a", f32::NAN)]).unwrap_err().to_string();
    assert_eq!(message, "`a` is NaN; only finite numbers can be drawn, so leave it out");
    // As many labels are drawn as fit, and long ones are truncated.
    for count in [1, 2, 40, 500] {
        for lying in [false, true] {
            let long = (0..count).map(|n| (format!("{n} {HOSTILE} and more than there is room for"), n as f64 - 3.0));
            let made = Bars::new(HOSTILE, HOSTILE, long).unwrap().title(HOSTILE);
            let picture = bars(&if lying { made.horizontal() } else { made });
            assert_eq!(picture.all("polygon").count(), count);
            assert!(picture.number("width") < 1_300.0 && picture.number("height") < 1_800.0);
        }
    }
    for hostile in [[f64::MIN, f64::MAX], [0.0, 0.0], [1e-320, -1e-320], [5.0, 5.0]] {
        bars(&Bars::new("", "", hostile.map(|value| ("a", value))).unwrap());
    }
}

#[test]
fn new_pictures_are_shown_in_notebooks() {
    let svg = |shown: Result<Vec<Shown>, PlotError>| {
        let shown = shown.unwrap();
        assert_eq!(shown[0].mime, "text/plain");
        assert_eq!(shown[1].mime, "image/svg+xml");
        Element::parsed(&shown[1].content);
    };
    svg(Scatter::new("x", "y", [(0.0, 1.0)]).unwrap().shown());
    svg(Histogram::of("x", [1.0]).unwrap().shown());
    svg(Bars::new("x", "y", [("a", 1.0)]).unwrap().shown());
    // Very many points are shown as a bitmap.
    let many = Scatter::new("x", "y", (0..5_000).map(|n| (f64::from(n), f64::from(n * n % 97)))).unwrap();
    assert_eq!(many.shown().unwrap()[1].mime, "image/png");
    let folder = tempfile::tempdir().unwrap();
    for ending in ["svg", "png", "html"] {
        let path = folder.path().join("bars").with_extension(ending);
        Bars::new("x", "y", [("a", 1.0)]).unwrap().title("of <a>").save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(if ending == "png" { bytes.starts_with(b"\x89PNG") } else { bytes.starts_with(b"<") }, "{ending}");
    }
}

/// The lines of a line plot go through its points, because the axes are the same.
#[test]
fn lines_and_points_stand_at_the_same_places() {
    let numbers = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)];
    let svg = LinePlot::new("x", "y", [Line::new("", numbers)]).unwrap().to_svg().unwrap();
    let picture = Element::parsed(&svg);
    let line = picture.all("polyline").find(|line| line.attributes["stroke"] == "#0072B2").unwrap().points();
    let marks: Vec<(f64, f64)> = picture.all("circle").map(|one| (one.number("cx"), one.number("cy"))).collect();
    assert_eq!(line, marks);
    let tick = |text: &str| picture.all("text").find(|one| one.text == text).unwrap().number("x");
    assert_eq!([tick("0"), tick("1"), tick("2")], [line[0].0, line[1].0, line[2].0]);
}

#[test]
fn passages_share_a_scale() {
    let one = ColoredText::new(["a", "b"]).row("first", [0.0, 1.0]).unwrap();
    let two = one.clone().passage("second <i>", ["c\n", "<d>", "e"], [4.0, 1.0, f64::NAN]).unwrap();
    let background = |html: &str, title: &str| {
        let from = html.split_once(&format!("title=\"{title}\"")).unwrap_or_else(|| panic!("{title} in {html}")).1;
        from.split_once("background: ").unwrap().1[..7].to_string()
    };
    let (before, after) = (html(&one), html(&two));
    assert_eq!(background(&after, "b: 1.0000"), background(&after, "&lt;d&gt;: 1.0000"));
    assert_ne!(background(&before, "b: 1.0000"), background(&after, "b: 1.0000"));
    assert_eq!(background(&before, "b: 1.0000"), background(&after, "c↵: 4.0000"), "the largest is darkest");
    assert!(after.contains("second &lt;i&gt;") && after.contains("e: NaN"));
    assert_eq!(after.matches("<details open>").count(), 2);
    let message = one.passage("third", ["a"], [1.0, 2.0]).unwrap_err().to_string();
    assert_eq!(message, "`third` has 2 values for 1 tokens; expected one per token");
}

/// Pictures of commands have the numbers of their tables.
#[test]
fn pictures_have_the_numbers_of_tables() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &[&str], out: &str| {
        let output = program().current_dir(folder.path()).args(command).args(["--out", out]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(folder.path().join(out)).unwrap()
    };
    let patch = ["patch", "--model", "embedded:ioi", "--ioi", "3"];
    let heads = ["heads", "--model", "embedded:induction"];
    let per_head = [&patch[..], &["--at", "*hook_z", "--per", "head,pos"]].concat();
    for (command, column) in [(&patch[..], "normalized"), (&per_head, "normalized"), (&heads, "value")] {
        let picture = Element::parsed(&run(command, "a.svg"));
        let cells = picture.all("g").flat_map(|group| group.all("rect"));
        let titles = cells.flat_map(|cell| cell.all("title"));
        let mut drawn: Vec<f64> =
            titles.filter_map(|title| title.text.lines().nth(1)?.rsplit_once(": ")?.1.parse::<f64>().ok()).collect();
        let table = run(command, "a.csv");
        let mut rows = csv::Reader::from_reader(table.as_bytes());
        let at = rows.headers().unwrap().iter().position(|name| name == column).unwrap();
        let mut numbers: Vec<f64> = rows.records().map(|row| row.unwrap()[at].parse().unwrap()).collect();
        assert_eq!(drawn.len(), numbers.len(), "{command:?}");
        drawn.sort_by(f64::total_cmp);
        numbers.sort_by(f64::total_cmp);
        for (a, b) in drawn.iter().zip(&numbers) {
            assert!((a - b).abs() <= 5e-6 * b.abs().max(1e-3), "{command:?}: {a} in the picture, {b} in the table");
        }
    }
}

/// Cells whose interval contains zero have another color in the pictures of commands, and effects of one axis are a line
/// with a band. Without intervals, which a single pair does not have, nothing is faded.
#[test]
fn intervals_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &str, out: &str| {
        let words = command.split(' ');
        let output = program().current_dir(folder.path()).args(words).args(["--out", out]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(folder.path().join(out)).unwrap()
    };
    let heads = "patch --model embedded:ioi --at *hook_z --per head --ioi";
    for command in [&format!("{heads} 12"), "attribute --model embedded:ioi --ioi 12"] {
        let picture = Element::parsed(&run(command, "a.svg"));
        assert!(picture.all("text").any(|text| text.text == "contains 0"), "{command}");
        let (mut faded, mut full) = (0, 0);
        for cell in picture.all("g").flat_map(|group| group.all("rect")) {
            let Some(title) = cell.all("title").next() else { continue };
            let (value, bounds) = title.text.split_once("\ninterval: ").unwrap();
            let value: f64 = value.rsplit_once(": ").unwrap().1.parse().unwrap();
            let (low, high) = bounds.split_once(" to ").unwrap();
            let (low, high): (f64, f64) = (low.parse().unwrap(), high.parse().unwrap());
            assert!(low <= value + 1e-6 && value <= high + 1e-6, "{}", title.text);
            let is_faded = low <= 0.0 && high >= 0.0;
            let color = u32::from_str_radix(&cell.attributes["fill"][1..], 16).unwrap().to_be_bytes();
            let spread = color[1..].iter().max().unwrap() - color[1..].iter().min().unwrap();
            assert!(!is_faded || spread < 45, "{}: {color:?}", title.text);
            faded += usize::from(is_faded);
            full += usize::from(!is_faded);
        }
        assert!(faded > 0 && full > 0, "{command}: {faded}, {full}");
    }
    let single = run(&format!("{heads} 1"), "a.svg");
    assert!(!single.contains("interval"), "{single}");
    let layers = "patch --model embedded:ioi --at *attn_out --per none --ioi";
    let band = |svg: String| Element::parsed(&svg).all("polygon").count();
    assert_eq!(band(run(&format!("{layers} 12"), "l.svg")), 1 + band(run(&format!("{layers} 1"), "l.svg")));
}

#[test]
fn intervals_of_other_shapes_are_refused() {
    let of = |labels: usize| {
        let axes = [LabeledAxis::numbered("layer", 1), LabeledAxis::numbered("head", labels)];
        LabeledArray::from_values(axes, vec![0.5; labels]).unwrap()
    };
    let (values, other) = (of(2), of(3));
    let message = Heatmap::of(&values).unwrap().intervals(&values, &other).unwrap_err();
    let expected = "the bounds of the intervals do not have the axes of the values: the arrays have different labels: \
                    index 2 of axis `head` is ";
    assert!(hooklens::error_chain(&message).starts_with(expected), "{}", hooklens::error_chain(&message));
    assert!(LinePlot::of(&values).unwrap().intervals(&other, &values).is_err());
    assert!(LinePlot::of(&values).unwrap().intervals(&values, &values).is_ok());
    // The same numbers with other names, in another order, or of other layers.
    let of = |axes: [LabeledAxis; 2]| LabeledArray::from_values(axes, vec![0.5; 4]).unwrap();
    let values = of([LabeledAxis::numbered("layer", 2), LabeledAxis::new("answer", ["Mary", "John"])]);
    for other in [
        of([LabeledAxis::new("answer", ["Mary", "John"]), LabeledAxis::numbered("layer", 2)]),
        of([LabeledAxis::new("layer", ["4", "5"]), LabeledAxis::new("answer", ["Mary", "John"])]),
    ] {
        assert!(matches!(Heatmap::of(&values).unwrap().intervals(&values, &other), Err(PlotError::Intervals(_))));
        assert!(matches!(LinePlot::of(&values).unwrap().intervals(&other, &values), Err(PlotError::Intervals(_))));
    }
    // Lines that are given one by one have no axes: bounds are those of the points, in order.
    let line = || LinePlot::new("x", "y", [Line::new("a", [(0.0, 1.0), (1.0, 2.0)])]).unwrap();
    let bounds =
        |count: usize| LabeledArray::from_values([LabeledAxis::numbered("x", count)], vec![1.0; count]).unwrap();
    assert!(line().intervals(&bounds(2), &bounds(2)).is_ok());
    assert!(matches!(line().intervals(&bounds(2), &bounds(3)), Err(PlotError::Lengths { given: 3, .. })));
}
