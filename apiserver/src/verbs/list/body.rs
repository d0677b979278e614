//! The body of a LIST: what was encoded once is copied out chunk by chunk.
//!
//! A reader that takes its time holds references to the objects and one chunk of bytes. Compressed lists are put
//! together from pieces that are kept ([`crate::cache::GzipChunkCache`]); where pieces begin is decided by the keys in
//! them, so that a change of one object costs one piece.
//!
//! Hot path: no trees for what is served in the version it is stored in.

use std::borrow::Cow;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::Crc;
use futures::StreamExt as _;
use futures::stream::{self, LocalBoxStream};
use proto::json::Indenter;

use crate::cache::{CacheRegistry, Entry, GzipChunk, gzip_chunks};
use crate::verbs::{Body, Reply};

/// Bytes of an answer that are made, or given away, at a time.
pub const CHUNK: usize = 64 << 10;
/// Lists of more objects are likely to need a whole chunk.
const FEW: usize = 16;
/// Bodies below this size are not compressed, as upstream has it.
pub const COMPRESS_FROM: usize = 128 << 10;
/// On average so many objects share a compressed piece; a power of two.
const PIECE: u64 = 64;
/// Most objects in one.
const PIECE_MOST: usize = 4 * 64;

/// Appends one object. False, with anything appended, for one that cannot be encoded: it is left out.
pub(super) type Item = Box<dyn Fn(&Entry, &mut Vec<u8>) -> bool>;

/// A list about to be written.
pub(super) struct ListParts {
    /// Bytes before the objects.
    pub head: Vec<u8>,
    /// The objects.
    pub items: Vec<Arc<Entry>>,
    /// Encoding of each item.
    pub item: Item,
    /// Objects are separated by commas.
    pub commas: bool,
    /// Bytes after the objects.
    pub tail: Cow<'static, [u8]>,
    /// Names this way of writing, when it depends on nothing but the objects.
    pub fixed: Option<u64>,
    /// The text is compact JSON, and to be indented.
    pub pretty: bool,
}

impl ListParts {
    /// `any` says whether there is an object before this one.
    fn write(&self, i: usize, any: &mut bool, out: &mut Vec<u8>) {
        let start = out.len();
        if self.commas && *any {
            out.push(b',');
        }
        if (self.item)(&self.items[i], out) {
            *any = true;
        } else {
            tracing::error!(key = &*self.items[i].key, "Failed to encode object of a list");
            out.truncate(start);
        }
    }

    /// End of the chunk that starts at `start`.
    fn piece_end(&self, start: usize) -> usize {
        let most = self.items.len().min(start + PIECE_MOST);
        let ends = (start..most).find(|i| hasher().hash_one(&*self.items[*i].key).is_multiple_of(PIECE));
        ends.map_or(most, |i| i + 1)
    }

    fn fingerprint(&self, start: usize, end: usize, any: bool) -> Option<gzip_chunks::Fingerprint> {
        let fixed = self.fixed.filter(|_| !self.pretty)?;
        let mut sum = 0_u128;
        for salt in 0..2_u8 {
            let mut h = hasher().build_hasher();
            (salt, fixed, any).hash(&mut h);
            for e in &self.items[start..end] {
                (&*e.key, e.revision).hash(&mut h);
            }
            sum = sum << 64 | u128::from(h.finish());
        }
        Some(sum)
    }
}

fn hasher() -> &'static RandomState {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new)
}

/// Text in the form that was asked for, part by part.
struct Form(Option<Indenter>);

impl Form {
    fn of(parts: &ListParts) -> Self {
        Self(parts.pretty.then(Indenter::default))
    }

    fn shape(&mut self, compact: Vec<u8>) -> Vec<u8> {
        let Some(indenter) = &mut self.0 else { return compact };
        let mut pretty = Vec::with_capacity(compact.len() + compact.len() / 2);
        indenter.indent(&compact, &mut pretty);
        pretty
    }
}

struct Chunks {
    parts: ListParts,
    form: Form,
    next: usize,
    any: bool,
    begun: bool,
    ended: bool,
}

impl Chunks {
    fn new(parts: ListParts) -> Self {
        Self { form: Form::of(&parts), parts, next: 0, any: false, begun: false, ended: false }
    }

    /// Appends until there is that much, or the end.
    fn fill(&mut self, out: &mut Vec<u8>, size: usize) {
        if !std::mem::replace(&mut self.begun, true) {
            out.append(&mut self.parts.head);
        }
        while self.next < self.parts.items.len() && out.len() < size {
            self.parts.write(self.next, &mut self.any, out);
            self.next += 1;
        }
        if self.next == self.parts.items.len() && !std::mem::replace(&mut self.ended, true) {
            out.extend_from_slice(&self.parts.tail);
        }
    }

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = Vec::with_capacity(CHUNK + (8 << 10));
        self.fill(&mut out, CHUNK);
        Some(Bytes::from(self.form.shape(out)))
    }
}

struct Packing {
    parts: ListParts,
    form: Form,
    caches: Arc<CacheRegistry>,
    next: usize,
    any: bool,
    begun: bool,
    ended: bool,
    crc: Crc,
    plain: Vec<u8>,
}

impl Packing {
    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if !std::mem::replace(&mut self.begun, true) {
            let head = self.form.shape(std::mem::take(&mut self.parts.head));
            let pack = GzipChunk::new(&head, false);
            self.crc.combine(&pack.crc);
            return Some(Bytes::from([&gzip_chunks::HEADER[..], &pack.bytes].concat()));
        }
        if self.next == self.parts.items.len() {
            self.ended = true;
            let tail = self.form.shape(self.parts.tail.to_vec());
            let pack = GzipChunk::new(&tail, true);
            self.crc.combine(&pack.crc);
            return Some(Bytes::from([&pack.bytes[..], &gzip_chunks::trailer(&self.crc)].concat()));
        }
        let (start, end) = (self.next, self.parts.piece_end(self.next));
        self.next = end;
        let of = self.parts.fingerprint(start, end, self.any);
        let pack = match of.and_then(|of| self.caches.gzip_chunks().get(of)) {
            Some(pack) => {
                self.any = true;
                pack
            }
            None => {
                let mut plain = std::mem::take(&mut self.plain);
                plain.clear();
                (start..end).for_each(|i| self.parts.write(i, &mut self.any, &mut plain));
                self.plain = self.form.shape(plain);
                let pack = Arc::new(GzipChunk::new(&self.plain, false));
                if let Some(of) = of {
                    self.caches.gzip_chunks().insert(of, pack.clone());
                }
                pack
            }
        };
        self.crc.combine(&pack.crc);
        Some(pack.bytes.clone())
    }
}

fn streamed<S: 'static>(
    state: S,
    next: impl Fn(&mut S) -> Option<Bytes> + 'static,
) -> LocalBoxStream<'static, Result<Bytes, Infallible>> {
    stream::unfold((state, next), |(mut state, next)| async move {
        let chunk = next(&mut state)?;
        Some((Ok(chunk), (state, next)))
    })
    .boxed_local()
}

/// The answer: in one piece when it is small, else in chunks; compressed when the client takes that and it is large.
pub(super) fn reply(caches: &Arc<CacheRegistry>, content_type: &str, gzip: bool, parts: ListParts) -> Reply {
    let head = parts.head.clone();
    let mut chunks = Chunks::new(parts);
    let size = if gzip { COMPRESS_FROM + 1 } else { CHUNK };
    let mut first = Vec::with_capacity(if chunks.parts.items.len() > FEW { CHUNK + (8 << 10) } else { 4 << 10 });
    chunks.fill(&mut first, size);
    if chunks.ended {
        return Reply::new(200, content_type, chunks.form.shape(first));
    }
    let (body, packed) = if gzip {
        drop(first);
        let parts = ListParts { head, ..chunks.parts };
        let packing = Packing {
            form: Form::of(&parts),
            parts,
            caches: caches.clone(),
            next: 0,
            any: false,
            begun: false,
            ended: false,
            crc: Crc::new(),
            plain: Vec::new(),
        };
        (streamed(packing, Packing::next), true)
    } else {
        let first = chunks.form.shape(first);
        let rest = streamed(chunks, Chunks::next);
        (stream::once(async move { Ok(Bytes::from(first)) }).chain(rest).boxed_local(), false)
    };
    Reply { code: 200, content_type: content_type.to_owned(), warnings: Vec::new(), body: Body::Stream(body), packed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Raw;

    fn parts(count: usize) -> ListParts {
        let entry = |i: usize| {
            Arc::new(Entry::new(&format!("n/{i}"), 1, Raw::Json(Bytes::new()), Vec::new(), std::iter::empty()))
        };
        ListParts {
            head: b"[".to_vec(),
            items: (0..count).map(entry).collect(),
            item: Box::new(|e, out| {
                out.extend_from_slice(format!("{:?}", e.name()).as_bytes());
                !matches!(e.name(), "0" | "3")
            }),
            commas: true,
            tail: Cow::Borrowed(b"]\n"),
            fixed: Some(1),
            pretty: false,
        }
    }

    #[test]
    fn chunks_skip_objects_that_cannot_be_encoded() {
        let mut chunks = Chunks::new(parts(6));
        let mut out = Vec::new();
        while !chunks.ended {
            let size = out.len() + 1;
            chunks.fill(&mut out, size);
        }
        assert_eq!(String::from_utf8_lossy(&out), "[\"1\",\"2\",\"4\",\"5\"]\n");
    }

    #[test]
    fn lists_are_indented_chunk_by_chunk() {
        let mut chunks = Chunks::new(ListParts { head: b"{\"items\":[".to_vec(), pretty: true, ..parts(6) });
        chunks.parts.tail = Cow::Borrowed(b"]}\n");
        let mut pretty = Vec::new();
        while !chunks.ended {
            let mut out = Vec::new();
            chunks.fill(&mut out, 1);
            pretty.extend(chunks.form.shape(out));
        }
        let expected = "{\n  \"items\": [\n    \"1\",\n    \"2\",\n    \"4\",\n    \"5\"\n  ]\n}";
        assert_eq!(String::from_utf8_lossy(&pretty), expected);
    }

    #[test]
    fn pieces_depend_on_keys_and_revisions() {
        let (a, mut b) = (parts(1000), parts(1000));
        let ends = |p: &ListParts| {
            let (mut at, mut ends) = (0, Vec::new());
            while at < p.items.len() {
                at = p.piece_end(at);
                ends.push(at);
            }
            ends
        };
        assert_eq!(ends(&a), ends(&b));
        let second = (ends(&a)[0], ends(&a)[1]);
        assert_eq!(a.fingerprint(second.0, second.1, true), b.fingerprint(second.0, second.1, true));
        b.items[second.0] =
            Arc::new(Entry::new(&a.items[second.0].key, 2, Raw::Json(Bytes::new()), Vec::new(), std::iter::empty()));
        assert_ne!(a.fingerprint(second.0, second.1, true), b.fingerprint(second.0, second.1, true));
    }
}
