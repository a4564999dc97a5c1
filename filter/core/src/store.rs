//! The shared store: what the core needs of Envoy's shared data, and an in-memory twin.
//!
//! All workers of one Envoy see one map. There is no listing, no removal and no put-if-absent:
//! a compare-and-swap on a missing key always succeeds. The core therefore uses a fixed key space
//! and repairs, rather than prevents, the rare lost first write of a key.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Mutex;

use ahash::AHashMap;

use crate::wire::Key;

/// Version of a stored value, for compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas(pub NonZeroU32);

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bytes as last set.
    pub value: Vec<u8>,
    /// Absent when the host gave no version; such a value is overwritten without a check.
    pub cas: Option<Cas>,
}

/// Why a store call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote the key since it was read: read again and retry.
    #[error("the value changed since it was read")]
    CasMismatch,
    /// The host refused the call; a retry does not help.
    #[error("the host refused the call")]
    Host,
}

/// A key-value map shared by all workers of one process.
pub trait SharedStore {
    /// The value under `key`, `None` when it was never set.
    ///
    /// # Errors
    /// [`StoreError::Host`] when the host fails.
    fn get(&self, key: &str) -> Result<Option<Rc<Entry>>, StoreError>;

    /// Sets `key`. With `cas`, only if the stored version is still that one; a missing key is set
    /// whatever `cas` says.
    ///
    /// # Errors
    /// [`StoreError::CasMismatch`] when the version differs, [`StoreError::Host`] when the host
    /// fails.
    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError>;
}

/// Reads, changes and writes one value, retrying while others change it too.
///
/// `change` gets the stored bytes (empty when missing) and returns the new ones, or `None` to leave
/// the value alone. Returns whether a write took place.
///
/// # Errors
/// [`StoreError::CasMismatch`] after [`crate::limits::CAS_ATTEMPTS_MAX`] lost races,
/// [`StoreError::Host`] when the host fails.
pub fn update<S: SharedStore>(
    store: &S,
    key: &str,
    mut change: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Result<bool, StoreError> {
    for _ in 0..crate::limits::CAS_ATTEMPTS_MAX {
        let entry = store.get(key)?;
        let (old, cas) = match entry.as_deref() {
            Some(entry) => (entry.value.as_slice(), entry.cas),
            None => (&[][..], None),
        };
        let Some(new) = change(old) else {
            return Ok(false);
        };
        match store.set(key, &new, cas) {
            Ok(()) => return Ok(true),
            Err(StoreError::CasMismatch) => {}
            Err(StoreError::Host) => return Err(StoreError::Host),
        }
    }
    Err(StoreError::CasMismatch)
}

/// The store as one decision sees it: what was read is not read again until it is written.
///
/// A call of the host costs about 2 us in Envoy, and the write path updates what the read path has
/// just read. Updates of a value that was there stay safe: their compare-and-swap fails when the
/// remembered version is no longer the stored one, and then reads anew. A missing key has no version;
/// its first write may overwrite another worker's, as it may without a view, in the time of a decision.
#[derive(Debug)]
pub struct View<'a, S> {
    store: &'a S,
    read: RefCell<AHashMap<Key, Option<Rc<Entry>>>>,
}

/// Keys that a decision about a short prompt reads.
const VIEW_KEYS: usize = 16;

impl<'a, S> View<'a, S> {
    /// A view that has read nothing yet.
    #[must_use]
    pub fn new(store: &'a S) -> Self {
        Self { store, read: RefCell::new(AHashMap::with_capacity(VIEW_KEYS)) }
    }
}

impl<S: SharedStore> SharedStore for View<'_, S> {
    fn get(&self, key: &str) -> Result<Option<Rc<Entry>>, StoreError> {
        let Some(name) = Key::of(key) else { return self.store.get(key) };
        let mut read = self.read.borrow_mut();
        if let Some(entry) = read.get(&name) {
            return Ok(entry.clone());
        }
        let entry = self.store.get(key)?;
        read.insert(name, entry.clone());
        Ok(entry)
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        if let Some(name) = Key::of(key) {
            self.read.borrow_mut().remove(&name);
        }
        self.store.set(key, value, cas)
    }
}

/// The in-memory store of native programs and tests, with the host's semantics.
#[derive(Debug, Default)]
pub struct MemoryStore {
    map: Mutex<AHashMap<String, (Vec<u8>, NonZeroU32)>>,
}

impl MemoryStore {
    /// Keys and bytes of values now held, for memory bounds.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        self.map
            .lock()
            .map_or((0, 0), |map| (map.len(), map.values().map(|(value, _)| value.len()).sum()))
    }
}

impl SharedStore for MemoryStore {
    fn get(&self, key: &str) -> Result<Option<Rc<Entry>>, StoreError> {
        let map = self.map.lock().map_err(|_| StoreError::Host)?;
        Ok(map
            .get(key)
            .map(|(value, version)| Entry { value: value.clone(), cas: Some(Cas(*version)) })
            .map(Rc::new))
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> Result<(), StoreError> {
        let mut map = self.map.lock().map_err(|_| StoreError::Host)?;
        if let Some((stored, version)) = map.get_mut(key) {
            if cas.is_some_and(|cas| cas.0 != *version) {
                return Err(StoreError::CasMismatch);
            }
            stored.clear();
            stored.extend_from_slice(value);
            *version = version.checked_add(1).unwrap_or(NonZeroU32::MIN);
        } else {
            map.insert(key.to_owned(), (value.to_vec(), NonZeroU32::MIN));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(store: &impl SharedStore) -> Vec<u8> {
        store.get("k").unwrap().map(|entry| entry.value.clone()).unwrap_or_default()
    }

    #[test]
    fn a_view_reads_once_until_it_writes() {
        let store = MemoryStore::default();
        let view = View::new(&store);
        assert_eq!(value(&view), b"");
        store.set("k", b"1", None).unwrap();
        assert_eq!(value(&view), b"", "remembered");
        view.set("k", b"2", None).unwrap();
        assert_eq!(value(&view), b"2");
    }

    #[test]
    fn an_update_through_a_view_loses_nothing_that_others_wrote() {
        let store = MemoryStore::default();
        store.set("k", b"1", None).unwrap();
        let view = View::new(&store);
        assert_eq!(value(&view), b"1");
        store.set("k", b"12", None).unwrap();
        let appended = update(&view, "k", |old| Some([old, b"3"].concat())).unwrap();
        assert!(appended);
        assert_eq!(value(&store), b"123");
    }
}
