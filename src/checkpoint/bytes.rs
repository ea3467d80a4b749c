//! Bytes that several owners share: a part of a mapped file, or a buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

/// Shared bytes. Clones are cheap; a file stays mapped while one of them lives.
#[derive(Clone)]
pub struct SharedBytes {
    store: Store,
    range: Range<usize>,
}

#[derive(Clone)]
enum Store {
    Mapped(Arc<Mmap>),
    /// The vector itself: a slice would be a copy of it, and there are gigabytes of these.
    Owned(Arc<Vec<u8>>),
}

impl SharedBytes {
    /// A part of a mapped file; `None` if the file ends before it.
    #[must_use]
    pub fn mapped(map: &Arc<Mmap>, range: Range<usize>) -> Option<Self> {
        map.get(range.clone())?;
        Some(Self { store: Store::Mapped(Arc::clone(map)), range })
    }

    /// A part of these; `None` if they end before it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        self.get(range.clone())?;
        let start = self.range.start;
        Some(Self { store: self.store.clone(), range: start + range.start..start + range.end })
    }

    /// Whether these lie in a mapped file.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.store, Store::Mapped(_))
    }

    /// A buffer.
    #[must_use]
    pub fn owned(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), store: Store::Owned(Arc::new(bytes)) }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.store {
            Store::Mapped(map) => map,
            Store::Owned(bytes) => bytes,
        };
        // The range was checked when this was made; neither store changes its length.
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes[{}]", self.range.len())
    }
}
