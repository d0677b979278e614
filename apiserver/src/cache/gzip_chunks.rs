//! Compressed pieces of lists, kept by what they were made of: the next list that holds the same objects at the same
//! revisions takes them as they are.
//!
//! A piece is a run of deflate blocks that ends on a byte, so pieces follow one another in one stream; their checksums
//! are combined. Together they stay within a bound, the piece not used for longest goes first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};
use parking_lot::Mutex;

/// Fingerprint of the uncompressed content of a chunk.
pub type Fingerprint = u128;

/// A compressed piece.
#[derive(Debug)]
pub struct GzipChunk {
    /// Deflate blocks.
    pub bytes: Bytes,
    /// Checksum and length of what was compressed.
    pub crc: Crc,
}

/// First bytes of a gzip stream.
pub const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

impl GzipChunk {
    /// Compresses a piece; the last one ends the stream.
    pub fn new(plain: &[u8], last: bool) -> Self {
        let mut compress = Compress::new(Compression::fast(), false);
        let flush = if last { FlushCompress::Finish } else { FlushCompress::Sync };
        let mut bytes = Vec::with_capacity(plain.len() / 4 + 64);
        loop {
            let read = usize::try_from(compress.total_in()).unwrap_or(plain.len()).min(plain.len());
            // Fails only on misuse; an empty rest then ends the loop below.
            let status = compress.compress_vec(&plain[read..], &mut bytes, flush);
            let room = bytes.len() < bytes.capacity();
            let all = compress.total_in() == plain.len() as u64;
            if matches!(status, Ok(flate2::Status::StreamEnd) | Err(_)) || (all && room) {
                break;
            }
            bytes.reserve(bytes.capacity().max(64));
        }
        bytes.shrink_to_fit();
        let mut crc = Crc::new();
        crc.update(plain);
        Self { bytes: Bytes::from(bytes), crc }
    }
}

/// The last bytes of a gzip stream.
pub fn trailer(crc: &Crc) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&crc.sum().to_le_bytes());
    out[4..].copy_from_slice(&crc.amount().to_le_bytes());
    out
}

#[derive(Debug, Default)]
struct State {
    all: HashMap<Fingerprint, (u64, Arc<GzipChunk>)>,
    by_use: BTreeMap<u64, Fingerprint>,
    clock: u64,
    bytes: usize,
}

/// The pieces that are kept.
#[derive(Debug)]
pub struct GzipChunkCache {
    limit: usize,
    state: Mutex<State>,
}

impl GzipChunkCache {
    /// At most so many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// A piece that is kept.
    pub fn get(&self, of: Fingerprint) -> Option<Arc<GzipChunk>> {
        let s = &mut *self.state.lock();
        let (used, pack) = s.all.get_mut(&of)?;
        s.by_use.remove(used);
        s.clock += 1;
        *used = s.clock;
        s.by_use.insert(s.clock, of);
        Some(pack.clone())
    }

    /// Keeps a piece.
    pub fn insert(&self, of: Fingerprint, pack: Arc<GzipChunk>) {
        let s = &mut *self.state.lock();
        s.clock += 1;
        s.bytes += pack.bytes.len();
        s.by_use.insert(s.clock, of);
        if let Some((used, old)) = s.all.insert(of, (s.clock, pack)) {
            s.by_use.remove(&used);
            s.bytes -= old.bytes.len();
        }
        while s.bytes > self.limit {
            let Some((_, oldest)) = s.by_use.pop_first() else { break };
            if let Some((_, old)) = s.all.remove(&oldest) {
                s.bytes -= old.bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn chunks_form_one_gzip_stream() {
        let mut plain = Vec::new();
        let mut stream = HEADER.to_vec();
        let mut crc = Crc::new();
        for i in 0..20 {
            let piece: Vec<u8> = (0..i * 1000).map(|b| u8::try_from((b * b + i) % 251).expect("small")).collect();
            let pack = GzipChunk::new(&piece, i == 19);
            plain.extend_from_slice(&piece);
            stream.extend_from_slice(&pack.bytes);
            crc.combine(&pack.crc);
        }
        stream.extend_from_slice(&trailer(&crc));
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(&stream[..]).read_to_end(&mut out).expect("a stream");
        assert!(out == plain);
    }

    #[test]
    fn oldest_chunks_are_evicted() {
        let packs = GzipChunkCache::new(100);
        let pack = |n: usize| Arc::new(GzipChunk { bytes: Bytes::from(vec![0; n]), crc: Crc::new() });
        packs.insert(1, pack(40));
        packs.insert(2, pack(40));
        assert!(packs.get(1).is_some());
        packs.insert(3, pack(40));
        assert_eq!((packs.get(1).is_some(), packs.get(2).is_some(), packs.get(3).is_some()), (true, false, true));
        packs.insert(3, pack(10));
        assert_eq!(packs.state.lock().bytes, 50);
    }
}
