//! Values that very many cached objects have in common, held once: the text of a condition, the containers that all
//! replicas of a template share.
//!
//! A cached type says so in its fields ([`Text`], [`Interned`]); the rest happens while an object is decoded. What
//! nobody holds any more leaves its pool when the pool has doubled, so a pool is never more than twice what is in use.

use std::any::{Any, TypeId};
use std::fmt;
use std::hash::{BuildHasher as _, Hasher, RandomState};
use std::io;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Weak};

use foldhash::HashMap;
use parking_lot::Mutex;
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A pool is looked through for what nobody holds when it has so many entries, and then each time it has doubled.
const FIRST_SWEEP: usize = 256;

/// Pool of interned values, by hash.
struct Pool<T: ?Sized> {
    entries: HashMap<u64, Vec<Arc<T>>>,
    len: usize,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { entries: HashMap::default(), len: 0, sweep_at: FIRST_SWEEP }
    }
}

impl<T: ?Sized> Pool<T> {
    /// The one that `is` it, or the one that `make` makes.
    fn take(&mut self, hash: u64, is: impl Fn(&T) -> bool, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(found) = self.entries.get(&hash).and_then(|same| same.iter().find(|one| is(one))) {
            return Arc::clone(found);
        }
        if self.len >= self.sweep_at {
            self.sweep();
        }
        let made = make();
        self.entries.entry(hash).or_default().push(Arc::clone(&made));
        self.len += 1;
        made
    }

    fn sweep(&mut self) {
        self.entries.retain(|_, same| {
            same.retain(|one| Arc::strong_count(one) > 1);
            !same.is_empty()
        });
        self.len = self.entries.values().map(Vec::len).sum();
        self.sweep_at = (self.len * 2).max(FIRST_SWEEP);
    }
}

static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static TEXTS: LazyLock<Mutex<Pool<str>>> = LazyLock::new(Mutex::default);
/// The pool of each type, made when the first value of it is decoded.
static POOLS: LazyLock<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);

/// A text that many objects have. Compares and hashes as the text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(Arc<str>);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(TEXTS.lock().take(KEYS.hash_one(text), |one| one == text, || Arc::from(text)))
    }
}

/// Default of fields that are not decoded yet: not worth a lookup in the pool.
impl Default for Text {
    fn default() -> Self {
        static EMPTY: LazyLock<Text> = LazyLock::new(|| "".into());
        EMPTY.clone()
    }
}

impl From<Text> for Arc<str> {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A value that many objects have. Reads as the value; there is no way to change it.
#[derive(PartialEq)]
pub struct Interned<T>(Arc<T>);

impl<T> Interned<T> {
    /// A value that is held already.
    pub fn known(value: Arc<T>) -> Self {
        Self(value)
    }

    /// Reports whether both share one value, without comparing values.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The value, to be held elsewhere.
    pub fn arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<'a, T> IntoIterator for &'a Interned<Vec<T>> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Default + PartialEq + Serialize + Send + Sync + 'static> Default for Interned<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl<T: PartialEq + Serialize + Send + Sync + 'static> From<T> for Interned<T> {
    fn from(value: T) -> Self {
        let hash = fingerprint(&value);
        let mut pools = POOLS.lock();
        let pool = pools.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(Pool::<T>::default()));
        // The entry of a type is a pool of that type.
        let Some(pool) = pool.downcast_mut::<Pool<T>>() else { return Self(Arc::new(value)) };
        let found = pool.entries.get(&hash).and_then(|same| same.iter().find(|one| ***one == value)).cloned();
        Self(found.unwrap_or_else(|| pool.take(hash, |_| false, || Arc::new(value))))
    }
}

impl<T: Serialize> Serialize for Interned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned + PartialEq + Serialize + Send + Sync + 'static> Deserialize<'de> for Interned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

/// The hash of the bytes that a shared value is read from: long enough that no two are ever the same.
pub type Signature = [u64; 2];

/// Finds shared values by the bytes they are read from, so that what replicas have in common is decoded once. Forgets
/// what nobody holds any more.
#[derive(Debug)]
pub struct Memo<T> {
    states: [RandomState; 2],
    known: HashMap<Signature, Weak<T>>,
    sweep_at: usize,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self { states: Default::default(), known: HashMap::default(), sweep_at: FIRST_SWEEP }
    }
}

impl<T> Memo<T> {
    /// The signature of these bytes.
    pub fn signature(&self, bytes: &[u8]) -> Signature {
        [self.states[0].hash_one(bytes), self.states[1].hash_one(bytes)]
    }

    /// The value that was read from such bytes.
    pub fn find(&self, signature: Signature) -> Option<Arc<T>> {
        self.known.get(&signature).and_then(Weak::upgrade)
    }

    /// Remembers what was read from such bytes.
    pub fn keep(&mut self, signature: Signature, value: &Arc<T>) {
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, value| value.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(FIRST_SWEEP);
        }
        self.known.insert(signature, Arc::downgrade(value));
    }
}

/// A hash of anything that has a text form: API types have no hash of their own.
fn fingerprint(value: &impl Serialize) -> u64 {
    struct Sink<H>(H);
    impl<H: Hasher> io::Write for Sink<H> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = Sink(KEYS.build_hasher());
    // A value without a text form is told from others by comparison alone.
    let _ = serde_json::to_writer(&mut sink, value);
    sink.0.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_held_once() {
        let read = |json: &str| serde_json::from_str::<(Text, Interned<Vec<String>>)>(json).expect("valid");
        let (a, b, c) = (read(r#"["x",["1","2"]]"#), read(r#"["x",["1","2"]]"#), read(r#"["y",["12"]]"#));
        assert!(Arc::ptr_eq(&a.0.0, &b.0.0) && Arc::ptr_eq(&a.1.0, &b.1.0));
        assert!(a.0 != c.0 && a.1 != c.1);
        assert_eq!(serde_json::to_string(&a).expect("text"), r#"["x",["1","2"]]"#);
    }

    #[test]
    fn what_was_read_is_found_again() {
        let mut memo = Memo::default();
        let (one, other) = (memo.signature(b"one"), memo.signature(b"other"));
        let value = Arc::new(1);
        memo.keep(one, &value);
        assert!(memo.find(one).is_some_and(|found| Arc::ptr_eq(&found, &value)));
        assert!(memo.find(other).is_none());
        for n in 0..1000_u32 {
            memo.keep(memo.signature(&n.to_le_bytes()), &Arc::new(2));
        }
        assert!(memo.known.len() <= 2 * FIRST_SWEEP && memo.find(one).is_some());
    }

    #[test]
    fn what_nobody_holds_goes() {
        let mut pool = Pool::<str>::default();
        let kept = pool.take(0, |one| one == "kept", || Arc::from("kept"));
        for n in 1..10_000_u64 {
            pool.take(n, |_| true, || Arc::from("dropped"));
        }
        assert!(pool.len <= 2 * FIRST_SWEEP, "{}", pool.len);
        assert!(Arc::ptr_eq(&kept, &pool.take(0, |one| one == "kept", || Arc::from("another"))));
    }
}
