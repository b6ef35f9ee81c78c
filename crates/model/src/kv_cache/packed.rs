//! Quantized keys and values on a device other than the CPU, dequantized on that device.

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use hooklens_hooks::upload;

use super::buffer::Buffer;
use super::kind::{Form, Quantization};
use super::quantized::Bits;

/// Bits per device integer, a width that every device supports.
const WORD: usize = 32;

/// Quantized keys and values, stored as tensors.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    quantization: Quantization,
    /// Element type of the dequantized tensors.
    dtype: DType,
    /// Number of dropped positions at the start.
    skipped: usize,
    stored: Option<Box<[Stored; 2]>>,
}

/// Keys or values, `[rows, len, head, width]`.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there are two per layer")]
enum Stored {
    /// Rounded to `bf16`.
    Rounded(Buffer),
    /// `words` are `[rows, len, head, word]`, with as many codes per word as fit; `least` and `step` are the minimum
    /// and step of each group, `[rows, len, head, group]`; `shifts` are the bit offsets of the codes in a word.
    Grouped { width: usize, shifts: Tensor<1, Int>, words: Buffer<Int>, least: Buffer, step: Buffer },
}

impl Packed {
    /// Whether a device supports this representation.
    pub(super) fn is_possible(Quantization { bits, .. }: Quantization, device: &Device) -> bool {
        bits != Bits::Sixteen || hooklens_hooks::device_supports(device, hooklens_hooks::DType::BF16)
    }

    pub(super) fn new(quantization: Quantization) -> Self {
        Self { quantization, dtype: DType::F32, skipped: 0, stored: None }
    }

    pub(super) fn len(&self) -> usize {
        self.stored.as_deref().map_or(0, |[keys, _]| keys.len() - self.skipped)
    }

    pub(super) fn form(&self) -> Option<Form> {
        let [keys, _] = self.stored.as_deref()?;
        Some((self.dtype, keys.device()?))
    }

    pub(super) fn bytes(&self) -> usize {
        self.stored.as_deref().into_iter().flatten().map(Stored::bytes).sum()
    }

    /// Appends keys and values.
    pub(super) fn push(&mut self, new: [Tensor<4>; 2]) {
        // Compact only when at least half of the positions are dropped, so that no more are moved than were dropped.
        if self.skipped > 0 && self.skipped >= self.len() {
            let held = self.skipped..self.skipped + self.len();
            let moved = |stored: Box<[Stored; 2]>| Box::new(stored.each_ref().map(|stored| stored.kept(held.clone())));
            (self.stored, self.skipped) = (self.stored.clone().map(moved), 0);
        }
        self.dtype = new[0].dtype();
        let new = new.map(Tensor::detach);
        let of = |tensor: &Tensor<4>| Stored::new(self.quantization, tensor);
        let stored = self.stored.get_or_insert_with(|| Box::new(new.each_ref().map(of)));
        stored.iter_mut().zip(new).for_each(|(stored, new)| stored.push(new, self.quantization));
    }

    /// Drops all but the last `keep` positions.
    pub(super) fn keep_last(&mut self, keep: usize) {
        self.skipped += self.len().saturating_sub(keep);
    }

    /// Dequantizes keys and values to their original element type.
    pub(super) fn read(&self) -> Option<[Tensor<4>; 2]> {
        let stored = self.stored.as_deref().filter(|_| self.len() > 0)?;
        let of = |stored: &Stored| {
            let all = stored.decoded(self.quantization)?.cast(self.dtype);
            Some(if self.skipped > 0 { all.narrow(1, self.skipped, self.len()) } else { all })
        };
        Some([of(&stored[0])?, of(&stored[1])?])
    }

    pub(super) fn truncate(&mut self, len: usize) {
        match len {
            0 => *self = Self::new(self.quantization),
            _ => {
                self.stored.as_deref_mut().into_iter().flatten().for_each(|stored| stored.truncate(self.skipped + len))
            }
        }
    }

    /// A copy with these rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        let stored = self.stored.as_deref().map(|stored| Box::new(stored.each_ref().map(|stored| stored.select(rows))));
        Self { stored, ..self.clone() }
    }
}

impl Stored {
    /// Creates empty storage for tensors like `new`.
    fn new(quantization: Quantization, new: &Tensor<4>) -> Self {
        let width = new.dims()[3];
        match quantization.bits {
            Bits::Sixteen => Stored::Rounded(Buffer::default()),
            Bits::Eight | Bits::Four => Stored::Grouped {
                width,
                shifts: Grouping::of(quantization, width).shifts(&new.device()),
                words: Buffer::default(),
                least: Buffer::default(),
                step: Buffer::default(),
            },
        }
    }

    fn len(&self) -> usize {
        match self {
            Stored::Rounded(all) => all.len(),
            Stored::Grouped { words, .. } => words.len(),
        }
    }

    fn device(&self) -> Option<Device> {
        match self {
            Stored::Rounded(all) => all.tensor().map(Tensor::device),
            Stored::Grouped { words, .. } => words.tensor().map(Tensor::device),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Stored::Rounded(all) => all.bytes(),
            Stored::Grouped { words, least, step, .. } => words.bytes() + least.bytes() + step.bytes(),
        }
    }

    fn push(&mut self, new: Tensor<4>, quantization: Quantization) {
        match self {
            Stored::Rounded(all) => all.append(new.cast(FloatDType::BF16), None),
            Stored::Grouped { width, shifts, words, least, step } => {
                let (codes, new_least, new_step) = Grouping::of(quantization, *width).encode(new, shifts);
                words.append(codes, None);
                least.append(new_least, None);
                step.append(new_step, None);
            }
        }
    }

    fn decoded(&self, quantization: Quantization) -> Option<Tensor<4>> {
        match self {
            Stored::Rounded(all) => all.filled(),
            Stored::Grouped { width, shifts, words, least, step } => {
                // Keep the buffers' heads-first layout, which attention's matrix products read in place.
                let (words, groups) = (words.filled()?.swap_dims(1, 2), [least.filled()?, step.filled()?]);
                let groups = groups.map(|groups| groups.swap_dims(1, 2));
                Some(Grouping::of(quantization, *width).decode(words, groups, shifts).swap_dims(1, 2))
            }
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Stored::Rounded(all) => all.truncate(len),
            Stored::Grouped { words, least, step, .. } => {
                words.truncate(len);
                least.truncate(len);
                step.truncate(len);
            }
        }
    }

    /// A copy with these positions.
    fn kept(&self, kept: std::ops::Range<usize>) -> Self {
        match self {
            Stored::Rounded(all) => Stored::Rounded(all.kept(kept)),
            Stored::Grouped { width, shifts, words, least, step } => Stored::Grouped {
                width: *width,
                shifts: shifts.clone(),
                words: words.kept(kept.clone()),
                least: least.kept(kept.clone()),
                step: step.kept(kept),
            },
        }
    }

    fn select(&self, rows: &[usize]) -> Self {
        match self {
            Stored::Rounded(all) => Stored::Rounded(all.select(rows)),
            Stored::Grouped { width, shifts, words, least, step } => Stored::Grouped {
                width: *width,
                shifts: shifts.clone(),
                words: words.select(rows),
                least: least.select(rows),
                step: step.select(rows),
            },
        }
    }
}

/// How the elements of a head are divided into groups, and their codes packed into words.
#[derive(Clone, Copy)]
struct Grouping {
    /// Bits per code.
    bits: usize,
    steps: f32,
    width: usize,
    group: usize,
}

impl Grouping {
    fn of(Quantization { bits, group }: Quantization, width: usize) -> Self {
        Self { bits: bits.count(), steps: bits.steps(), width, group: group.min(width) }
    }

    /// Number of groups per head.
    fn groups(self) -> usize {
        self.width.div_ceil(self.group)
    }

    /// Bit offset of each code in a word, `[code]`.
    fn shifts(self, device: &Device) -> Tensor<1, Int> {
        let shifts: Vec<i32> = (0..WORD / self.bits).map(|place| (place * self.bits) as i32).collect();
        upload(TensorData::new(shifts, [WORD / self.bits]), device)
    }

    /// Quantizes values to packed words, and the minimum and step of each group.
    fn encode(self, values: Tensor<4>, shifts: &Tensor<1, Int>) -> (Tensor<4, Int>, Tensor<4>, Tensor<4>) {
        let [rows, len, heads, width] = values.dims();
        let (groups, per_word) = (self.groups(), WORD / self.bits);
        let values = values.cast(FloatDType::F32);
        // Pad an incomplete last group by repeating its last element, which changes neither minimum nor maximum.
        let missing = groups * self.group - width;
        let again = || values.clone().narrow(3, width - 1, 1).expand([rows, len, heads, missing]);
        let values = if missing > 0 { Tensor::cat(vec![values.clone(), again()], 3) } else { values };
        let values = values.reshape([rows, len, heads, groups, self.group]);
        let least = values.clone().min_dim(4);
        let step = (values.clone().max_dim(4) - least.clone()) / self.steps;
        let divisor = step.clone().mask_fill(step.clone().equal_elem(0.0), 1.0);
        let codes = ((values.clone() - least.clone().expand(values.dims())) / divisor.expand(values.dims())).round();
        let codes = codes.clamp(0.0, self.steps).int().reshape([rows, len, heads, groups * self.group]);
        let words = (groups * self.group).div_ceil(per_word);
        let missing = words * per_word - groups * self.group;
        let zeros = Tensor::zeros([rows, len, heads, missing], (&codes.device(), codes.dtype()));
        let codes = if missing > 0 { Tensor::cat(vec![codes, zeros], 3) } else { codes };
        let codes = codes.reshape([rows, len, heads, words, per_word]);
        let shifts = shifts.clone().cast(codes.dtype()).unsqueeze::<5>().expand(codes.dims());
        // The codes don't overlap, so summing them combines their bits.
        let words = codes.bitwise_left_shift(shifts).sum_dim(4).reshape([rows, len, heads, words]);
        let flat = |tensor: Tensor<5>| tensor.reshape([rows, len, heads, groups]);
        (words, flat(least), flat(step))
    }

    /// Dequantizes to within half a step. The axes before the last keep the order that they have in `words`.
    fn decode(self, words: Tensor<4, Int>, [least, step]: [Tensor<4>; 2], shifts: &Tensor<1, Int>) -> Tensor<4> {
        let [rows, first, second, count] = words.dims();
        let (groups, per_word) = (self.groups(), WORD / self.bits);
        let shape = [rows, first, second, count, per_word];
        let shifts = shifts.clone().cast(words.dtype()).unsqueeze::<5>().expand(shape);
        let codes = words.unsqueeze_dim::<5>(4).expand(shape).bitwise_right_shift(shifts);
        let codes = codes.bitwise_and_scalar((1 << self.bits) - 1).reshape([rows, first, second, count * per_word]);
        let codes = narrow_to(codes.float().cast(FloatDType::F32), groups * self.group);
        let codes = codes.reshape([rows, first, second, groups, self.group]);
        let of_group = |groups: Tensor<4>| groups.unsqueeze_dim::<5>(4).expand(codes.dims());
        let values = of_group(least) + codes.clone() * of_group(step);
        narrow_to(values.reshape([rows, first, second, groups * self.group]), self.width)
    }
}

/// The first `width` elements of each vector.
fn narrow_to(vectors: Tensor<4>, width: usize) -> Tensor<4> {
    if vectors.dims()[3] == width { vectors } else { vectors.narrow(3, 0, width) }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::super::codes::Codes;
    use super::*;

    #[test]
    fn what_is_read_is_what_main_memory_holds() {
        let device = Device::default();
        for (bits, group, width) in [
            (Bits::Eight, 64, 12),
            (Bits::Four, 5, 12),
            (Bits::Four, 4, 7),
            (Bits::Eight, 3, 1),
            (Bits::Sixteen, 64, 6),
        ] {
            let quantization = Quantization { bits, group };
            let (mut packed, mut codes) = (Packed::new(quantization), Codes::new(quantization));
            let same = |packed: &Packed, codes: &Codes| {
                assert_eq!(packed.len(), codes.len());
                assert!(packed.len() == 0 || packed.form() == codes.form());
                let both = [packed.read(), codes.read()].map(|both| both.map(|both| both.map(Tensor::into_data)));
                let (Some(packed), Some(codes)) = (&both[0], &both[1]) else { return assert_eq!(both[0], both[1]) };
                packed.iter().zip(codes).for_each(|(packed, codes)| {
                    packed.assert_approx_eq::<f32>(codes, burn::tensor::Tolerance::absolute(1e-5));
                });
            };
            let push = |packed: &mut Packed, codes: &mut Codes, rows: usize, count: usize| {
                let new = |heads| {
                    let values = Tensor::random([rows, count, heads, width], Distribution::Normal(0.0, 2.0), &device);
                    // Includes a group of equal elements.
                    values.clone().slice_assign(
                        [0..1, 0..1, 0..1, 0..width],
                        values.zeros_like().narrow(0, 0, 1).narrow(1, 0, 1).narrow(2, 0, 1) + 3.0,
                    )
                };
                // Simulates a run that fails later.
                let held = packed.len();
                packed.push([new(2), new(1)]);
                codes.push([new(2), new(1)]).unwrap();
                packed.truncate(held);
                codes.truncate(held);
                same(packed, codes);
                let both = [new(2), new(1)];
                packed.push(both.clone());
                codes.push(both).unwrap();
                same(packed, codes);
            };
            push(&mut packed, &mut codes, 2, 5);
            push(&mut packed, &mut codes, 2, 1);
            for keep in [6, 4, 3, 1] {
                packed.keep_last(keep);
                codes.keep_last(keep);
                push(&mut packed, &mut codes, 2, 2);
            }
            let (mut packed, mut codes) = (packed.select(&[1, 0, 1]), codes.select(&[1, 0, 1]));
            push(&mut packed, &mut codes, 3, 40);
            for len in [30, 2, 0] {
                packed.truncate(len);
                codes.truncate(len);
                same(&packed, &codes);
            }
            push(&mut packed, &mut codes, 1, 3);
            assert!(packed.bytes() > 0);
        }
    }
}
