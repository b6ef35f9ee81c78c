//! Bounds the memory that reading a pickle takes.
//!
//! A pickle is a program for a stack machine. A one-byte instruction can create an object of a hundred bytes, and an
//! archive may be a thousand times smaller than its pickle. The reader keeps every object, so before it sees a file,
//! this machine runs the same program with the size of each object in place of the object.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use zip::ZipArchive;

use hooklens_io::regular;
use hooklens_model::error::{LoadError, load_errors};

/// Maximum memory of a checkpoint's objects in bytes. The objects that describe a tensor take about nine
/// thousand bytes.
const MOST: usize = 160 << 20;

/// Size of an object in a container.
const OBJECT: usize = 72;
/// Size of an allocation besides its contents.
const HEAP: usize = 32;
/// Additional size of an object on the stack. Objects are moved into containers all at once, so memory may hold several
/// copies of each.
const ON_STACK: usize = 250;
/// Size of an entry of the memo, which is a hash table that may just have grown.
const MEMO: usize = 280;
/// Size of an entry of a dictionary, besides its key and value.
const ENTRY: usize = 260;
/// Unused capacity of a list that was extended.
const SPARE: usize = 3 * OBJECT;
/// Size of a reference to the data of a tensor.
const STORAGE: usize = 100;
/// Size of the arguments of a reference to a tensor's data above which the name among them may be long.
const LONG: usize = 1000;
/// Maximum number of pickles in a checkpoint that is not an archive. The newer format has one, and the older format has
/// five, the last of which is a list of keys.
const PICKLES: usize = 5;

/// Fails if reading the objects of a checkpoint would take far more memory than any model needs. Any other fault is
/// left to the reader, which finds it at the same instruction.
pub(super) fn check(path: &Path) -> Result<(), LoadError> {
    let failed = load_errors::cant_read(path);
    let mut file = BufReader::new(regular::open(path).map_err(&failed)?);
    let start = file.fill_buf().map_err(&failed)?;
    if start.get(257..262) == Some(b"ustar") {
        let reason = "it is in the format of PyTorch before 0.1.10 (tar), which is not supported; load it and save it \
                      again with a newer version";
        return Err(load_errors::corrupt(path, reason));
    }
    let weighed = if start.starts_with(b"PK") { of_archive(file) } else { of_stream(file) };
    match weighed {
        Err(Stop::Heavy) => {
            let most = MOST >> 20;
            Err(load_errors::corrupt(
                path,
                format!("its objects take more than {most} MiB of memory, not counting tensor data"),
            ))
        }
        _ => Ok(()),
    }
}

/// Measures the pickles of an archive, including their inflated size, because the reader inflates a pickle as a whole.
fn of_archive(file: BufReader<File>) -> Result<(), Stop> {
    let mut archive = ZipArchive::new(file).map_err(|_| Stop::Invalid)?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.to_string()));
    let pickles: Vec<String> = names.filter(|name| name.ends_with("data.pkl")).collect();
    for name in pickles {
        let Ok(entry) = archive.by_name(&name) else { continue };
        let size = usize::try_from(entry.size()).unwrap_or(usize::MAX);
        if let Err(Stop::Heavy) = Machine::new(BufReader::new(entry), size).run() {
            return Err(Stop::Heavy);
        }
    }
    Ok(())
}

/// Measures the pickles at the start of a file.
fn of_stream(mut file: BufReader<File>) -> Result<(), Stop> {
    file.seek(SeekFrom::Start(0))?;
    (0..PICKLES).try_for_each(|_| Machine::new(&mut file, 0).run())
}

/// Why a machine stopped before the end of its program.
enum Stop {
    /// The objects take too much memory.
    Heavy,
    /// The program is invalid, or the reader does not support it.
    Invalid,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Invalid
    }
}

/// The stack machine, with the sizes of objects as its values.
struct Machine<R> {
    program: R,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u32, usize>,
    /// Bytes of all objects on the stack and in the memo, and of the program if it is in memory.
    held: usize,
}

impl<R: BufRead> Machine<R> {
    fn new(program: R, size: usize) -> Self {
        Self { program, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), held: size }
    }

    /// Runs the program up to its `STOP` instruction.
    fn run(mut self) -> Result<(), Stop> {
        while self.step()? {
            let tables = self.stack.len() * ON_STACK + self.marks.len() * HEAP + self.memo.len() * MEMO;
            if self.held.saturating_add(tables) > MOST {
                return Err(Stop::Heavy);
            }
        }
        Ok(())
    }

    /// Runs one instruction. Returns false if it was the `STOP` instruction.
    fn step(&mut self) -> Result<bool, Stop> {
        let [code] = self.bytes()?;
        match code {
            b'.' => return Ok(false),
            // Skips the protocol version, or the length of a frame.
            0x80 => drop(self.bytes::<1>()?),
            0x95 => drop(self.bytes::<8>()?),
            b'N' | 0x88 | 0x89 | b')' | b']' | b'}' | 0x8f => self.push(OBJECT),
            b'K' => self.number::<1>()?,
            b'M' => self.number::<2>()?,
            b'J' => self.number::<4>()?,
            b'G' => self.number::<8>()?,
            b'I' | b'L' | b'F' | b'V' | b'P' => {
                let len = self.line()?.len();
                self.push(OBJECT + STORAGE + len);
            }
            b'U' | b'C' | 0x8a | 0x8c => self.text::<1>()?,
            b'X' | b'T' | b'B' | 0x8b => self.text::<4>()?,
            0x8d | 0x8e | 0x96 => self.text::<8>()?,
            b'c' => {
                let len = self.line()?.len() + self.line()?.len();
                self.push(OBJECT + 2 * HEAP + len);
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop(1)?),
            b'1' => drop(self.pop_marked()?),
            b't' | b'l' | 0x91 => {
                let (_, size) = self.pop_marked()?;
                self.push(OBJECT + HEAP + size);
            }
            b'd' => {
                let (count, size) = self.pop_marked()?;
                self.push(OBJECT + count * ENTRY + size);
            }
            0x85..=0x87 => {
                let size = self.pop(usize::from(code - 0x84))?;
                self.push(OBJECT + HEAP + size);
            }
            b'a' => {
                let size = self.pop(1)?;
                self.extend(SPARE + size)?;
            }
            b'e' | 0x90 => {
                let (_, size) = self.pop_marked()?;
                self.extend(SPARE + size)?;
            }
            b's' => {
                let size = self.pop(2)?;
                self.extend(ENTRY + size)?;
            }
            b'u' => {
                let (count, size) = self.pop_marked()?;
                self.extend(count / 2 * ENTRY + size)?;
            }
            b'2' => {
                let size = *self.stack.last().ok_or(Stop::Invalid)?;
                self.push(size);
            }
            b'g' | b'h' | b'j' => {
                let index = self.index(code)?;
                let size = *self.memo.get(&index).ok_or(Stop::Invalid)?;
                self.push(size);
            }
            b'p' | b'q' | b'r' | 0x94 => {
                let index = self.index(code)?;
                let size = *self.stack.last().ok_or(Stop::Invalid)?;
                self.held += size;
                self.held -= self.memo.insert(index, size).unwrap_or(0);
            }
            b'Q' => {
                let size = self.pop(1)?;
                // The reader keeps only a name from the arguments, which is short unless the arguments are long.
                self.push(OBJECT + STORAGE + if size > LONG { size } else { 0 });
            }
            // The results of calls, which may contain all arguments.
            b'R' | 0x81 | 0x93 => self.call(2)?,
            0x92 => self.call(3)?,
            b'b' => {
                let size = self.pop(2)?;
                // The memo gets a copy of the built object.
                self.held += size;
                self.push(size);
            }
            _ => return Err(Stop::Invalid),
        }
        Ok(true)
    }

    fn push(&mut self, size: usize) {
        self.held = self.held.saturating_add(size);
        self.stack.push(size);
    }

    /// Removes objects, and returns their size.
    fn pop(&mut self, count: usize) -> Result<usize, Stop> {
        let bottom = self.stack.len().checked_sub(count).ok_or(Stop::Invalid)?;
        let size = self.stack.drain(bottom..).sum();
        self.held -= size;
        Ok(size)
    }

    /// Removes the objects above the last mark, and returns their number and size.
    fn pop_marked(&mut self) -> Result<(usize, usize), Stop> {
        let mark = self.marks.pop().ok_or(Stop::Invalid)?;
        let count = self.stack.len().checked_sub(mark).ok_or(Stop::Invalid)?;
        Ok((count, self.pop(count)?))
    }

    /// Adds to the container on top of the stack.
    fn extend(&mut self, size: usize) -> Result<(), Stop> {
        *self.stack.last_mut().ok_or(Stop::Invalid)? += size;
        self.held += size;
        Ok(())
    }

    fn call(&mut self, arguments: usize) -> Result<(), Stop> {
        let size = self.pop(arguments)?;
        self.push(OBJECT + STORAGE + size);
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut bytes = [0; N];
        self.program.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<(), Stop> {
        self.bytes::<N>()?;
        self.push(OBJECT);
        Ok(())
    }

    /// Reads an object whose length in bytes is stored in the next `N` bytes.
    fn text<const N: usize>(&mut self) -> Result<(), Stop> {
        let mut len = [0; 8];
        len[..N].copy_from_slice(&self.bytes::<N>()?);
        let len = u64::from_le_bytes(len);
        if len > MOST as u64 {
            // The reader would keep the whole object, up to the end of the file.
            return Err(Stop::Heavy);
        }
        io::copy(&mut (&mut self.program).take(len), &mut io::sink())?;
        self.push(OBJECT + HEAP + len as usize);
        Ok(())
    }

    fn line(&mut self) -> Result<Vec<u8>, Stop> {
        let mut line = Vec::new();
        (&mut self.program).take(MOST as u64).read_until(b'\n', &mut line)?;
        if line.len() == MOST {
            return Err(Stop::Heavy);
        }
        Ok(line)
    }

    /// Reads an index into the memo, in the encoding of the instruction `code`.
    fn index(&mut self, code: u8) -> Result<u32, Stop> {
        match code {
            b'h' | b'q' => Ok(self.bytes::<1>()?[0].into()),
            b'j' | b'r' => Ok(u32::from_le_bytes(self.bytes()?)),
            0x94 => Ok(self.memo.len() as u32),
            _ => String::from_utf8_lossy(&self.line()?).trim().parse().map_err(|_| Stop::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn message(path: &Path) -> String {
        check(path).map_or_else(|error| error.to_string(), |()| "accepted".to_string())
    }

    /// A checkpoint with this pickle, deflated.
    fn archive(folder: &Path, pickle: &[u8]) -> std::path::PathBuf {
        let path = folder.join("a.pt");
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        archive.start_file("archive/data.pkl", SimpleFileOptions::default()).unwrap();
        archive.write_all(pickle).unwrap();
        archive.finish().unwrap();
        path
    }

    #[test]
    fn heavy_pickles_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dictionaries = [&b"]("[..], &b"}K\x01K\x01s".repeat(500_000), b"e."].concat();
        let copies = [&b"]("[..], &b"}K\x01K\x01s".repeat(10_000), b"eq\x00", &b"h\x00".repeat(60), b"."].concat();
        let text = [&b"X"[..], &(100u32 << 20).to_le_bytes(), &vec![b'x'; 100 << 20], b"."].concat();
        for pickle in [
            &[&b"]("[..], &b"K\x01".repeat(4_000_000), b"e."].concat(),
            &b"(".repeat(20_000_000),
            &[b"N", &b"\x94".repeat(1_000_000)[..]].concat(),
            &dictionaries,
            &copies,
            &text,
        ] {
            let path = archive(folder.path(), pickle);
            assert!(message(&path).ends_with("its objects take more than 160 MiB of memory, not counting tensor data"));
        }
        // The same program outside an archive, where it is not in memory as a whole.
        let path = folder.path().join("a.bin");
        std::fs::write(&path, &dictionaries).unwrap();
        assert!(message(&path).contains("its objects"), "{}", message(&path));
        let tar = [&[0; 257][..], b"ustar"].concat();
        std::fs::write(&path, tar).unwrap();
        assert!(message(&path).contains("PyTorch before 0.1.10"), "{}", message(&path));
    }

    /// Accepts a pickle like those that `torch.save` writes, with the names, sizes and strides of 15,000 matrices, and
    /// invalid programs.
    #[test]
    fn other_pickles_are_left_to_the_reader() {
        let folder = tempfile::tempdir().unwrap();
        let mut pickle = b"\x80\x02}q\x00(".to_vec();
        for tensor in 0..15_000u32 {
            let memo = |number: u32| [&b"r"[..], &(tensor * 9 + number + 1).to_le_bytes()].concat();
            let name = format!("model.layers.{tensor:05}.mlp.experts.gate_proj.weight");
            pickle.extend(b"X");
            pickle.extend((name.len() as u32).to_le_bytes());
            pickle.extend(name.as_bytes());
            pickle.extend(memo(0));
            pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n");
            pickle.extend(b"X\x05\x00\x00\x0012345");
            pickle.extend(memo(1));
            pickle.extend(b"X\x03\x00\x00\x00cpuM\x00\x01t");
            pickle.extend(memo(2));
            pickle.extend(b"QK\x00K\x10K\x10\x86");
            pickle.extend(memo(3));
            pickle.extend(b"K\x10K\x01\x86");
            pickle.extend(memo(4));
            pickle.extend(b"\x89ccollections\nOrderedDict\n)R");
            pickle.extend(memo(5));
            pickle.extend(b"t");
            pickle.extend(memo(6));
            pickle.extend(b"R");
            pickle.extend(memo(7));
        }
        pickle.extend(b"u.");
        assert_eq!(message(&archive(folder.path(), &pickle)), "accepted");
        assert_eq!(message(&archive(folder.path(), b"\x80\x02}0000.")), "accepted");
        assert_eq!(message(&archive(folder.path(), b"\x80\x02}\xff")), "accepted");
    }
}
