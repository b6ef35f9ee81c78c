//! Prompts from files of every kind, in the library and in commands.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use hooklens::DumpError;
use hooklens::corpus::{Corpus, Prompt};
use hooklens_data::corpus::{PlacedPrompts, pieces_of};
use proptest::prelude::*;

use crate::support::{cases, program};

fn texts(of: &[&str]) -> Vec<Prompt> {
    of.iter().map(|text| Prompt::Text((*text).to_string())).collect()
}

fn read(corpus: &Corpus) -> Result<Vec<Prompt>, DumpError> {
    corpus.prompts()?.collect()
}

pub(crate) fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Decompressing files of one or several parts gives the original contents.
#[test]
fn packed_files_are_what_was_packed() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] =
        ["{\"text\": \"red fox\"}\n\n[1, 2]\n", "\"tea owl\"\r\n{\"tokens\": [3]}"].map(str::as_bytes);
    let whole = [first, second].concat();
    let expected =
        [texts(&["red fox"]), vec![Prompt::Tokens(vec![1, 2])], texts(&["tea owl"]), vec![Prompt::Tokens(vec![3])]];
    for (name, bytes) in [
        ("a.jsonl", whole.clone()),
        ("b.jsonl.gz", gzipped(&whole)),
        ("c.jsonl.gz", [gzipped(first), gzipped(second)].concat()),
        ("d.jsonl.zst", zstandard(&whole)),
        ("e.jsonl.zst", [zstandard(first), zstandard(second)].concat()),
        ("f.NDJSON.GZ", gzipped(&whole)),
        // File names need not reveal the format.
        ("g.jsonl", gzipped(&whole)),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        assert_eq!(read(&Corpus::new([&path])).unwrap(), expected.concat(), "{name}");
    }
    let path = folder.path().join("lines.txt.gz");
    fs::write(&path, gzipped(b"red fox\n  \n[1, 2]\n")).unwrap();
    assert_eq!(read(&Corpus::new([&path])).unwrap(), texts(&["red fox", "[1, 2]"]));
    // Frames without data before, between and after those with data.
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let path = folder.path().join("h.jsonl.zst");
    fs::write(&path, [&skipped, &zstandard(first)[..], &skipped, &zstandard(second), &skipped].concat()).unwrap();
    assert_eq!(read(&Corpus::new([&path])).unwrap(), expected.concat());
    // A checksum that does not match the data, in the last four bytes.
    let mut bytes = zstandard(&whole);
    if bytes[4] & 4 != 0 {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let message = hooklens::error_chain(&read(&Corpus::new([&path])).unwrap_err());
        assert!(message.contains("checksum"), "{message}");
    }
    // A byte order mark, as some programs write.
    let path = folder.path().join("mark.jsonl");
    fs::write(&path, [&b"\xef\xbb\xbf"[..], &whole].concat()).unwrap();
    assert_eq!(read(&Corpus::new([&path])).unwrap(), expected.concat());
    // Truncated, or not in the format that the first bytes indicate.
    for (name, bytes) in [("cut.jsonl.gz", gzipped(&whole)), ("cut.jsonl.zst", zstandard(&whole))] {
        let path = folder.path().join(name);
        fs::write(&path, &bytes[..bytes.len() - 6]).unwrap();
        let message = read(&Corpus::new([&path])).unwrap_err();
        assert!(matches!(message, DumpError::File { .. }), "{message}");
        assert!(message.to_string().contains(name), "{message}");
    }
}

/// Fields of any name and depth. A line without the field is reported by number, with the fields it has.
#[test]
fn any_field_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let lines = [
        r#"{"body": "red fox", "meta": {"title": "R", "ids": [4, 5]}, "a.b": "dotted"}"#,
        r#"{"body": 7, "a": {"b": "within"}}"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let of = |field: &str| Corpus::new([&path]).field(field).limit(1);
    assert_eq!(read(&of("body")).unwrap(), texts(&["red fox"]));
    assert_eq!(read(&of("meta.title")).unwrap(), texts(&["R"]));
    assert_eq!(read(&of("meta.ids")).unwrap(), [Prompt::Tokens(vec![4, 5])]);
    assert_eq!(read(&of("a.b").limit(9)).unwrap(), texts(&["dotted", "within"]));
    for (field, words) in
        [("body", "`body` is neither"), ("title", "no field `title`; the fields are"), ("meta", "`meta` is neither")]
    {
        let message = read(&Corpus::new([&path]).field(field)).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains("a.jsonl"), "{message}");
    }
    // Lines are parsed as JSON if a field is given, whatever the file is named.
    let named = folder.path().join("a.txt");
    fs::copy(&path, &named).unwrap();
    assert_eq!(read(&Corpus::new([&named]).field("body").limit(1)).unwrap(), texts(&["red fox"]));
    let message = read(&Corpus::new([&path]).field("body").skip(1)).unwrap_err().to_string();
    assert!(message.contains('2'), "{message}");
    // Skipped lines may be anything, but a file that cannot be read is still reported.
    assert!(read(&Corpus::new([&path]).field("body").skip(2)).unwrap().is_empty());
    let cut = folder.path().join("cut.jsonl.gz");
    let packed = gzipped(lines.join("\n").repeat(100).as_bytes());
    fs::write(&cut, &packed[..packed.len() - 20]).unwrap();
    assert!(read(&Corpus::new([&cut]).field("body").skip(5000)).is_err());
}

/// Patterns give files in order; existing names are taken literally.
#[test]
fn patterns_and_shares_of_a_corpus() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("b.txt", "three\nfour\n"), ("a.txt", "one\ntwo\n"), ("c[1].txt", "five\n")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::create_dir(folder.path().join("d.txt")).unwrap();
    let all = Corpus::new([folder.path().join("?.txt"), folder.path().join("c[1].txt")]);
    assert_eq!(read(&all).unwrap(), texts(&["one", "two", "three", "four", "five"]));
    assert_eq!(read(&all.clone().skip(1).limit(3)).unwrap(), texts(&["two", "three", "four"]));
    assert_eq!(read(&all.clone().skip(4).limit(3)).unwrap(), texts(&["five"]));
    let drawn = read(&all.clone().skip(1).limit(3).sample(2, 3)).unwrap();
    assert!(drawn.len() == 2 && drawn.iter().all(|prompt| texts(&["two", "three", "four"]).contains(prompt)));
    assert_eq!(read(&all.clone().sample(9, 3)).unwrap().len(), 5);
    assert!(read(&all.clone().sample(0, 3)).unwrap().is_empty());
    for name in ["*.jsonl", "nothing.txt", "d.txt", "x[.txt"] {
        let message = read(&Corpus::new([folder.path().join(name)])).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(100) })]

    /// A prompt's reported position is its line in its file, even if prompts are skipped, sampled or compressed.
    #[test]
    fn a_place_is_the_line_of_its_prompt(
        files in prop::collection::vec((prop::collection::vec("[a-z]{0,3}", 0..9), 0..3usize), 1..4),
        skip in 0..9usize, limit in 0..20usize, sample in prop::option::of(0..9usize), seed: u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..files.len()).map(|number| folder.path().join(format!("{number}.txt"))).collect();
        for (path, (lines, packed)) in paths.iter().zip(&files) {
            let bytes = lines.join("\n").into_bytes();
            let packed = [bytes.clone(), gzipped(&bytes), zstandard(&bytes)][*packed].clone();
            fs::write(path, packed).unwrap();
        }
        let corpus = Corpus::new(&paths).skip(skip).limit(limit);
        let corpus = sample.into_iter().fold(corpus, |corpus, count| corpus.sample(count, seed));
        let placed: Vec<_> = corpus.placed().unwrap().collect::<Result<_, _>>().unwrap();
        for (prompt, place) in &placed {
            let file = paths.iter().position(|path| **path == *place.file).unwrap();
            prop_assert_eq!(prompt, &Prompt::Text(files[file].0[place.number - 1].clone()));
            prop_assert_eq!(place.to_string(), format!("{}:{}", paths[file].display(), place.number));
        }
        let prompts: Vec<Prompt> = placed.into_iter().map(|(prompt, _)| prompt).collect();
        prop_assert_eq!(prompts, read(&corpus).unwrap());
    }
}

fn dump(folder: &Path, arguments: &[&str], input: Stdio) -> (bool, String) {
    let mut command = program();
    command.current_dir(folder).args(["dump", "--model", "embedded:induction", "--hooks", "z0"]);
    if !arguments.contains(&"--out") {
        command.args(["--out", "out"]);
    }
    let output = command.args(arguments).stdin(input).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    fs::remove_dir_all(folder.join("out")).ok();
    (output.status.success(), said)
}

/// The pieces of a corpus have the prompts of the corpus, in order. A piece's prompts have the positions that they have
/// in the whole file.
#[test]
fn pieces_are_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let lines: String = (0..4000).map(|n| format!("{{\"text\": \"prompt ä {n}\"}}\n\n")).collect();
    file("a.jsonl", lines.as_bytes());
    file("b.jsonl.gz", &gzipped(lines.as_bytes()));
    file("c.jsonl.zst", &zstandard(lines.as_bytes()));
    file("empty.jsonl", b"");
    let corpus = Corpus::new([folder.path().join("*.jsonl*")]);
    let pieces = pieces_of(&corpus).unwrap();
    assert!(pieces.count() > 4, "{}", pieces.count());
    let all = |placed: PlacedPrompts| placed.map(|one| one.map(|(prompt, place)| (prompt, place.to_string())));
    let whole: Vec<_> = all(corpus.placed().unwrap()).collect::<Result<_, _>>().unwrap();
    let apart = (0..pieces.count()).flat_map(|piece| all(pieces.open(piece).unwrap()));
    assert_eq!(apart.collect::<Result<Vec<_>, _>>().unwrap(), whole);
    // Errors name the line in the file.
    file("wrong.jsonl", format!("{lines}{{}}\n").as_bytes());
    let pieces = pieces_of(&Corpus::new([folder.path().join("wrong.jsonl")])).unwrap();
    let message = all(pieces.open(pieces.count() - 1).unwrap()).find_map(Result::err).unwrap().to_string();
    assert!(message.contains("wrong.jsonl:8001"), "{message}");
    #[cfg(feature = "arrow")]
    for name in ["snappy.parquet", "zstd.parquet", "large.parquet", "file.arrow", "lz4.feather", "datasets.arrow"] {
        let corpus = Corpus::new([crate::support::fixtures().join("tables").join(name)]);
        let pieces = pieces_of(&corpus).unwrap();
        let whole: Vec<Prompt> = corpus.prompts().unwrap().collect::<Result<_, _>>().unwrap();
        let apart = (0..pieces.count()).flat_map(|piece| pieces.open(piece).unwrap()).map(|placed| placed.unwrap().0);
        assert_eq!(apart.collect::<Vec<_>>(), whole, "{name}");
    }
}

/// Tables as written by other programs.
#[cfg(feature = "arrow")]
#[test]
fn tables_are_read_by_column() {
    let file = |name: &str| crate::support::fixtures().join("tables").join(name);
    let all = texts(&["red fox", "tea owl", "blue elk", "king drum sun"]);
    let ids = [&[1, 2, 3][..], &[4], &[5, 6], &[7, 8, 9, 10]].map(|ids| Prompt::Tokens(ids.to_vec()));
    for name in ["snappy.parquet", "zstd.parquet", "large.parquet", "file.arrow", "lz4.feather"] {
        assert_eq!(read(&Corpus::new([file(name)])).unwrap(), all, "{name}");
        assert_eq!(read(&Corpus::new([file(name)]).field("text").skip(2)).unwrap(), all[2..], "{name}");
    }
    for (name, field) in [("snappy.parquet", "input_ids"), ("large.parquet", "input_ids"), ("datasets.arrow", "tokens")]
    {
        assert_eq!(read(&Corpus::new([file(name)]).field(field)).unwrap(), ids, "{name}");
    }
    assert_eq!(read(&Corpus::new([file("datasets.arrow")])).unwrap(), all);
    for name in ["snappy.parquet", "file.arrow"] {
        let titles = read(&Corpus::new([file(name)]).field("meta.title")).unwrap();
        assert_eq!(titles, texts(&["RED FOX", "TEA OWL", "BLUE ELK", "KING DRUM SUN"]));
    }
    for (name, field, words) in [
        ("snappy.parquet", Some("title"), "it has id, text, meta, input_ids"),
        ("snappy.parquet", Some("meta.author"), "no column `meta.author`"),
        ("snappy.parquet", Some("id"), "expected strings or lists of token ids"),
        ("bad.parquet", None, "bad.parquet, row 2: `text` is null"),
        ("bad.parquet", Some("ids"), "not a token id"),
    ] {
        let corpus = field.map_or(Corpus::new([file(name)]), |field| Corpus::new([file(name)]).field(field));
        let message = hooklens::error_chain(&read(&corpus).unwrap_err());
        assert!(message.contains(words) && message.contains(name), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    // A table with damage anywhere is either read or rejected.
    for name in ["file.arrow", "datasets.arrow", "snappy.parquet"] {
        let whole = fs::read(file(name)).unwrap();
        for at in (0..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xa5;
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            read(&Corpus::new([path]).field("text")).ok();
        }
    }
    let whole = fs::read(file("snappy.parquet")).unwrap();
    for (name, bytes) in
        [("cut.parquet", &whole[..whole.len() / 2]), ("empty.arrow", &[]), ("text.parquet", b"red fox\n")]
    {
        fs::write(folder.path().join(name), bytes).unwrap();
        let message = read(&Corpus::new([folder.path().join(name)])).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

/// Dictionary-encoded columns give their texts, for any types of index and text.
#[cfg(feature = "arrow")]
#[test]
fn dictionary_encoded_columns_are_texts() {
    use std::sync::Arc;

    use arrow_array::types::*;
    use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, PrimitiveArray, RecordBatch, StructArray};
    use arrow_array::{LargeStringArray, StringArray, StringViewArray};
    use arrow_ipc::writer::{FileWriter, StreamWriter};
    use arrow_schema::{Field, Schema};
    use parquet::arrow::ArrowWriter;

    const VALUES: [&str; 3] = ["red fox", "tea owl, which is longer than a view holds", "blue elk"];
    const KEYS: [usize; 5] = [1, 0, 2, 1, 1];
    fn utf8(values: Vec<&str>) -> ArrayRef {
        Arc::new(StringArray::from(values))
    }
    fn large(values: Vec<&str>) -> ArrayRef {
        Arc::new(LargeStringArray::from(values))
    }
    fn view(values: Vec<&str>) -> ArrayRef {
        Arc::new(StringViewArray::from(values))
    }
    // The same column with two dictionaries, one in reverse order.
    macro_rules! dictionary {
        ($key:ty, $native:ty, $values:ident) => {{
            let keys = PrimitiveArray::<$key>::from_iter_values(KEYS.map(|key| key as $native));
            let back = PrimitiveArray::<$key>::from_iter_values(KEYS.map(|key| (2 - key) as $native));
            let [values, reversed] = [VALUES.to_vec(), VALUES.into_iter().rev().collect()].map($values);
            let column = |keys, values| Arc::new(DictionaryArray::<$key>::try_new(keys, values).unwrap()) as ArrayRef;
            [column(keys, values), column(back, reversed)]
        }};
    }
    let columns = [
        dictionary!(Int8Type, i8, utf8),
        dictionary!(Int16Type, i16, large),
        dictionary!(Int32Type, i32, view),
        dictionary!(Int32Type, i32, utf8),
        dictionary!(Int64Type, i64, large),
        dictionary!(UInt8Type, u8, view),
        dictionary!(UInt16Type, u16, utf8),
        dictionary!(UInt32Type, u32, large),
        dictionary!(UInt64Type, u64, utf8),
    ];
    let table = |column: ArrayRef| {
        let field = Field::new("text", column.data_type().clone(), true);
        let within = StructArray::from(vec![(Arc::new(field.clone()), column.clone())]);
        let meta = Field::new("meta", within.data_type().clone(), true);
        let schema = Arc::new(Schema::new(vec![field, meta]));
        RecordBatch::try_new(schema, vec![column, Arc::new(within)]).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let written = |batches: &[RecordBatch]| {
        let created = |name: &str| fs::File::create(file(name)).unwrap();
        let schema = batches[0].schema();
        let mut rows = ArrowWriter::try_new(created("a.parquet"), schema.clone(), None).unwrap();
        let mut stream = StreamWriter::try_new(created("stream.arrow"), &schema).unwrap();
        let mut whole = FileWriter::try_new(created("file.arrow"), &schema).unwrap();
        for batch in batches {
            rows.write(batch).unwrap();
            rows.flush().unwrap();
            stream.write(batch).unwrap();
        }
        // In such a file, one dictionary applies to the whole column.
        whole.write(&batches[0]).unwrap();
        rows.close().unwrap();
        stream.finish().unwrap();
        whole.finish().unwrap();
    };
    let expected = texts(&KEYS.map(|key| VALUES[key]));
    let mut last = Vec::new();
    for [column, other] in columns {
        let kind = column.data_type().to_string();
        // Part of the column, and then all of it with another dictionary.
        written(&[table(column.slice(1, 3)), table(other)]);
        for (name, rows) in [("a.parquet", 8), ("stream.arrow", 8), ("file.arrow", 3)] {
            let expected: Vec<Prompt> = expected[1..4].iter().chain(&expected).take(rows).cloned().collect();
            for field in ["text", "meta.text"] {
                let found = read(&Corpus::new([file(name)]).field(field));
                assert_eq!(found.unwrap(), expected, "{kind} {field} {name}");
            }
        }
        last = fs::read(file("stream.arrow")).unwrap();
    }
    // An empty column, or an empty dictionary.
    let keys = PrimitiveArray::<Int32Type>::from(vec![Some(0), None]);
    let absent = DictionaryArray::try_new(keys, utf8(VALUES.to_vec())).unwrap();
    let keys = PrimitiveArray::<Int32Type>::from(vec![0, 1]);
    let listed = DictionaryArray::try_new(keys, Arc::new(StringArray::from(vec![Some("red fox"), None]))).unwrap();
    let keys = PrimitiveArray::<Int32Type>::from(vec![None, None]);
    let empty = DictionaryArray::try_new(keys, utf8(Vec::new())).unwrap();
    for (column, row) in [(absent, 2), (listed, 2), (empty, 1)] {
        written(&[table(Arc::new(column))]);
        for name in ["a.parquet", "stream.arrow", "file.arrow"] {
            let message = read(&Corpus::new([file(name)])).unwrap_err().to_string();
            assert!(message.contains(&format!("{name}, row {row}: `text` is null")), "{message}");
        }
    }
    let numbers = PrimitiveArray::<Int32Type>::from(vec![0, 1]);
    let numbers = DictionaryArray::try_new(numbers, Arc::new(Int64Array::from(vec![7, 8]))).unwrap();
    written(&[table(Arc::new(numbers))]);
    let message = read(&Corpus::new([file("stream.arrow")])).unwrap_err().to_string();
    assert!(message.contains("row 1: `text` has type Int64"), "{message}");
    // A file with damage anywhere is either read or rejected.
    for at in (0..last.len()).step_by(7) {
        let mut bytes = last.clone();
        bytes[at] ^= 0xa5;
        fs::write(file("damaged.arrow"), bytes).unwrap();
        read(&Corpus::new([file("damaged.arrow")])).ok();
    }
}

/// A folder of tables can be sharded, interrupted and resumed like one of tensors, and its token column can be read
/// again.
#[cfg(feature = "arrow")]
#[test]
fn tables_are_folders_like_others() {
    use hooklens::dump::{Dump, Shard, merge};
    use hooklens::prelude::*;
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<u32>> = (0..8).map(|row| (1..row + 2).collect()).collect();
    let dump = || Dump::new("resid_post1").batch_size(2).tables();
    let whole = dump().run(&model, &rows, folder.path().join("whole")).unwrap();
    assert_eq!(whole.files.len(), 4);
    let shards = [1, 2].map(|index| folder.path().join(format!("all/{index}")));
    for (index, out) in shards.iter().enumerate() {
        dump().shard(Shard::new(index + 1, 2).unwrap()).run(&model, &rows, out).unwrap();
    }
    let merged = merge(folder.path().join("all"), &shards).unwrap();
    for (one, other) in whole.files.iter().zip(&merged.files) {
        assert!(fs::read(one).unwrap() == fs::read(other).unwrap());
    }
    // A damaged file is recomputed. Another file format makes it another dump.
    fs::write(&whole.files[2], "damaged").unwrap();
    let again = dump().resume(true).run(&model, &rows, folder.path().join("whole")).unwrap();
    assert_eq!(again.resumed, 2);
    assert!(fs::read(&again.files[2]).unwrap() == fs::read(&merged.files[2]).unwrap());
    let message = Dump::new("resid_post1").batch_size(2).resume(true).run(&model, &rows, folder.path().join("whole"));
    assert!(message.unwrap_err().to_string().contains("format"));
    let columns = hooklens::corpus::Corpus::new(&whole.files[..1]).field("blocks.1.hook_resid_post").prompts();
    let message = columns.unwrap().next().unwrap().unwrap_err().to_string();
    assert!(message.contains("expected lists of token ids"), "{message}");
}

mod once {
    use super::*;

    /// Commands accept the same inputs: a pattern of compressed files, a selection, and endless standard input.
    #[test]
    fn commands_read_corpora() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for number in 0..3 {
            let lines = (0..5).map(|_| "{\"body\": \"red fox\"}\n").collect::<String>();
            fs::write(path.join(format!("{number}.jsonl.gz")), gzipped(lines.as_bytes())).unwrap();
        }
        let corpus = ["--prompts", "*.jsonl.gz", "--field", "body"];
        let some = |more: &[&str]| dump(path, &[&corpus[..], more].concat(), Stdio::null());
        assert!(some(&[]).1.starts_with("15 prompts"));
        assert!(some(&["--skip", "4", "--limit", "10", "--sample", "6"]).1.starts_with("6 prompts"));
        assert!(
            dump(path, &["--prompts", "0.jsonl.gz", "2.jsonl.gz", "--field", "body"], Stdio::null())
                .1
                .starts_with("10 prompts")
        );
        // Inputs are not overwritten, however they were named.
        fs::write(path.join("corpus_keep.safetensors"), "red fox\n").unwrap();
        let (done, said) = dump(path, &["--prompts", "corpus_k*", "--out", "corpus_keep.safetensors"], Stdio::null());
        assert!(!done && fs::read(path.join("corpus_keep.safetensors")).unwrap() == b"red fox\n", "{said}");
        let (done, said) = some(&["--field", "title"]);
        assert!(!done && !said.contains("panicked"), "{said}");
        for (arguments, endless) in [(&["--field", "text"][..], "{\"text\": \"red fox\"}"), (&[], "tea owl")] {
            let mut source = Command::new("yes").arg(endless).stdout(Stdio::piped()).spawn().unwrap();
            let input = Stdio::from(source.stdout.take().unwrap());
            let (done, said) = dump(path, &[&["--prompts", "-", "--limit", "3"], arguments].concat(), input);
            source.kill().unwrap();
            source.wait().unwrap();
            assert!(done && said.starts_with("3 prompts"), "{said}");
        }
        let (done, said) = dump(path, &["--prompt", "red fox", "--limit", "1"], Stdio::null());
        assert!(!done && said.contains("--prompts"), "{said}");
        if !cfg!(feature = "arrow") {
            fs::write(path.join("a.parquet"), "PAR1").unwrap();
            let (done, said) = dump(path, &["--prompts", "a.parquet"], Stdio::null());
            assert!(!done && said.contains("--features arrow"), "{said}");
        }
    }

    /// When a command rejects a prompt, it names the file and line, anywhere in the corpus.
    #[test]
    fn a_prompt_that_is_refused_is_named_by_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("a.jsonl"), "\"red fox\"\n[0, 1, 2]\n").unwrap();
        let long = format!("{:?}", [1; 80]);
        let of = |bad: &str, before: usize| {
            let lines = "[1, 2]\n\n".repeat(before) + bad + "\n[1]\n";
            fs::write(path.join("b.jsonl.gz"), gzipped(lines.as_bytes())).unwrap();
            format!("b.jsonl.gz:{}: ", 2 * before + 1)
        };
        let train = [
            "features",
            "train",
            "--at",
            "blocks.1.hook_resid_post",
            "--latents",
            "4",
            "--k",
            "2",
            "--batch-size",
            "4",
            "--tokens",
            "8",
            "--out",
            "sae",
        ];
        let show = ["features", "show", "--heads", "0", "--out", "page.html"];
        let ran = |command: &[&str], more: &[&str]| {
            let files = ["--prompts", "a.jsonl", "b.jsonl.gz", "--model", "embedded:induction"];
            let output = program().current_dir(path).args(command).args(files).args(more).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success() && !said.contains("panicked"), "{said}");
            said
        };
        let dump = ["dump", "--out", "out"];
        for (command, more, bad, words) in [
            (&dump[..], &[][..], "\"quux\"", "lacks `quux`"),
            (&dump, &[], "[]", "it is empty"),
            (&dump, &["--skip", "2"], "[4, 99]", "token 99"),
            (&dump, &["--concatenate", "2"], "[4, 99]", "token 99"),
            (&dump, &["--sample", "99"], long.as_str(), "80 positions"),
            (&dump, &["--positions", "1"], "[7]", "1 positions"),
            (&train, &[], "\"quux\"", "lacks `quux`"),
            (&train, &[], "[]", "the prompt is empty"),
            (&train, &["--concatenate", "2"], "[4, 99]", "token 99"),
            (&show, &[], "[4, 99]", "token 99"),
            (&show, &["--skip", "1"], long.as_str(), "80 positions"),
            (&show, &[], "{}", "expected a string"),
        ] {
            for before in [0, 3] {
                let place = of(bad, before);
                let said = ran(command, more);
                assert!(
                    said.contains(&place) && said.contains(words),
                    "{command:?} {more:?} {bad}, not {place}: {said}"
                );
                assert!(!path.join("out/manifest.json").exists() && !path.join("sae").exists(), "{command:?} {more:?}");
            }
        }
        let eval =
            ["features", "eval", "--dictionary", "embedded:ioi-sae", "--model", "embedded:ioi", "--prompts", "c.txt"];
        fs::write(path.join("c.txt"), "Mary and John\n\nquux\n").unwrap();
        let output = program().current_dir(path).args(eval).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("c.txt:3: ") && said.contains("`quux`"), "{said}");
        // Prompts from the command line are identified by their number.
        let mut command = program();
        command.args(["features", "show", "--heads", "0", "--out", "p.html", "--model", "embedded:induction"]);
        let output = command.args(["--prompt", "red", "quux"]).output().unwrap();
        assert!(String::from_utf8(output.stderr).unwrap().contains("prompt 2: "));
    }
}
