//! Words that slots are filled with.

/// Rows of words. Some of the rows are drawn, without repetition, to fill a group of slots.
#[derive(Debug, Clone)]
pub(super) struct Choices {
    pub(super) slots: Vec<String>,
    /// Number of words per row, each for one slot.
    pub(super) width: usize,
    pub(super) rows: Vec<Vec<String>>,
    /// Whether the words may have any number of tokens and contain slots.
    pub(super) are_phrases: bool,
}

impl Choices {
    /// Number of rows in a draw.
    pub(super) fn drawn(&self) -> usize {
        self.slots.len() / self.width.max(1)
    }

    /// Number of possible draws; `u128::MAX` if there are more.
    pub(super) fn draws(&self) -> u128 {
        let rows = self.rows.len() as u128;
        let factor = |taken: usize| rows.saturating_sub(taken as u128);
        (0..self.drawn()).map(factor).fold(1, u128::saturating_mul)
    }

    /// The words of the draw with this number, each with its slot.
    pub(super) fn draw(&self, mut number: u128) -> Vec<(&str, &str)> {
        let (mut taken, mut words) = (Vec::new(), Vec::new());
        for slots in self.slots.chunks(self.width.max(1)) {
            let free = self.rows.len().saturating_sub(taken.len()).max(1) as u128;
            // The remainder fits in a `usize`, because it is less than the number of rows.
            let mut row = (number % free) as usize;
            number /= free;
            // Skips the rows already taken, in ascending order.
            for other in &taken {
                row += usize::from(*other <= row);
            }
            taken.insert(taken.partition_point(|other| *other < row), row);
            let row = self.rows.get(row).into_iter().flatten();
            words.extend(slots.iter().map(String::as_str).zip(row.map(String::as_str)));
        }
        words
    }

    /// Formats a row for messages.
    pub(super) fn name(row: &[String]) -> String {
        row.join("/")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Choices;

    #[test]
    fn every_draw_is_different_and_without_repetition() {
        let slots = ["a", "b", "c"].map(String::from).to_vec();
        let rows = (0..5).map(|row| vec![row.to_string()]).collect();
        let choices = Choices { slots, width: 1, rows, are_phrases: false };
        assert_eq!(choices.draws(), 60);
        let all: BTreeSet<Vec<(&str, &str)>> = (0..60).map(|number| choices.draw(number)).collect();
        assert_eq!(all.len(), 60);
        for draw in all {
            assert_eq!(draw.iter().map(|(_, word)| word).collect::<BTreeSet<_>>().len(), 3, "{draw:?}");
        }
    }
}
