//! Choice of the axis labels that are drawn if not all of them fit.

/// The labels of an axis that are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabelChoice {
    /// Indices of the labels, ascending.
    pub(super) shown: Vec<usize>,
    /// Number of labels of the axis.
    count: usize,
    /// Whether the labels were chosen by strength.
    strongest: bool,
}

impl LabelChoice {
    /// Chooses as many labels as fit, where labels are `pitch` apart and each needs `room`: those with the largest
    /// `strength` or, if the labels are plain numbers or all have the same strength, labels at equal distances.
    pub(super) fn of(labels: &[String], pitch: f64, room: f64, strength: impl Fn(usize) -> f64) -> Self {
        let count = labels.len();
        let apart = ((room / pitch.max(1e-9)).ceil().max(1.0) as usize).min(count.max(1));
        let strengths: Vec<f64> = (0..count).map(strength).collect();
        let even = strengths.windows(2).all(|pair| pair[0] == pair[1]);
        let numbers = labels.iter().all(|label| label.parse::<f64>().is_ok());
        if apart == 1 || even || numbers {
            return Self { shown: (0..count).step_by(apart).collect(), count, strongest: false };
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| strengths[*b].total_cmp(&strengths[*a]));
        let mut taken = vec![false; count];
        for at in order {
            let (from, to) = ((at + 1).saturating_sub(apart), (at + apart).min(count));
            taken[at] = !taken[from..to].contains(&true);
        }
        Self { shown: (0..count).filter(|at| taken[*at]).collect(), count, strongest: true }
    }

    /// The name of the axis, with a note if labels are missing.
    pub(super) fn axis_name(&self, name: &str) -> String {
        let (shown, count) = (self.shown.len(), self.count);
        if shown == count {
            return name.into();
        }
        let which = if self.strongest { ", largest values" } else { "" };
        format!("{name} ({shown} of {count} labels{which})").trim_start().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_label_is_never_left_out() {
        let labels: Vec<String> = (0..100).map(|at| format!("L{at}")).collect();
        for strongest in 0..100 {
            let choice = LabelChoice::of(&labels, 5.0, 13.0, |at| if at == strongest { 9.0 } else { (at % 7) as f64 });
            assert!(choice.shown.contains(&strongest));
            assert!(choice.shown.windows(2).all(|pair| pair[1] - pair[0] >= 3), "{choice:?}");
            assert!(
                choice.axis_name("head").starts_with("head (") && choice.axis_name("head").contains(" of 100 labels")
            );
        }
    }

    #[test]
    fn numbers_are_at_equal_distances_and_all_labels_are_shown_if_they_fit() {
        let labels: Vec<String> = (0..10).map(|at| at.to_string()).collect();
        let thinned = LabelChoice::of(&labels, 5.0, 13.0, |at| at as f64);
        assert_eq!(
            (thinned.shown.as_slice(), thinned.axis_name("pos").as_str()),
            (&[0, 3, 6, 9][..], "pos (4 of 10 labels)")
        );
        let whole = LabelChoice::of(&labels, 13.0, 13.0, |at| at as f64);
        assert_eq!((whole.shown.len(), whole.axis_name("pos").as_str()), (10, "pos"));
    }
}
