//! Arrangement of panels in rows and columns.

/// The numbers of columns and rows of a grid for `panels` panels. `size` is the width and height of a panel that has
/// all the space, and `room` is the size of the picture. Panels are as large as possible, the grid is wider than tall,
/// and it has few empty places.
pub(super) fn panel_grid(panels: usize, size: (f64, f64), room: (f64, f64)) -> (usize, usize) {
    const RATIO: f64 = 1.4;
    let cost = |columns: usize| {
        let rows = panels.div_ceil(columns);
        let (width, height) = (columns as f64 * size.0, rows as f64 * size.1.max(1.0));
        // Panels shrink to fit side by side, and one below the other.
        let scale = (room.0 / width).min(room.1 / height).min(1.0);
        let empty = (columns * rows - panels) as f64 / panels as f64;
        (width / height / RATIO).ln().abs() - 2.0 * scale.ln() + 2.0 * empty
    };
    let best = (1..=panels.max(1)).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(1);
    (best, panels.div_ceil(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: (f64, f64) = (860.0, 640.0);

    #[test]
    fn grids_are_filled() {
        assert_eq!(panel_grid(4, (176.0, 300.0), ROOM), (4, 1));
        assert_eq!(panel_grid(4, (400.0, 400.0), ROOM), (2, 2));
        assert_eq!(panel_grid(12, (300.0, 300.0), ROOM), (4, 3));
        assert_eq!(panel_grid(3, (176.0, 60.0), ROOM), (1, 3));
        assert_eq!(panel_grid(1, (10.0, 10.0), ROOM), (1, 1));
        for panels in 1..60 {
            let (columns, rows) = panel_grid(panels, (200.0, 200.0), ROOM);
            assert!(columns * rows >= panels && columns * (rows - 1) < panels);
        }
    }
}
