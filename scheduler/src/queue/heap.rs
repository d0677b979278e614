//! A heap whose members can be found and removed by uid. Answers for upstream's `pkg/scheduler/backend/heap`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::QueuedPod;

type Order = Box<dyn Fn(&QueuedPod, &QueuedPod) -> Ordering + Send + Sync>;

/// See the module. `Less` comes out first.
pub(super) struct Heap {
    order: Order,
    items: Vec<QueuedPod>,
    at: HashMap<Arc<str>, usize>,
}

impl Heap {
    pub(super) fn new(order: Order) -> Self {
        Self { order, items: Vec::new(), at: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn get(&self, uid: &str) -> Option<&QueuedPod> {
        self.at.get(uid).map(|&i| &self.items[i])
    }

    pub(super) fn peek(&self) -> Option<&QueuedPod> {
        self.items.first()
    }

    /// Adds, or replaces the one of that uid.
    pub(super) fn push(&mut self, pod: QueuedPod) {
        self.remove(&pod.pod.uid);
        let i = self.items.len();
        self.at.insert(Arc::clone(&pod.pod.uid), i);
        self.items.push(pod);
        self.up(i);
    }

    pub(super) fn pop(&mut self) -> Option<QueuedPod> {
        if self.items.is_empty() { None } else { Some(self.take(0)) }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<QueuedPod> {
        let i = *self.at.get(uid)?;
        Some(self.take(i))
    }

    fn take(&mut self, i: usize) -> QueuedPod {
        let out = self.items.swap_remove(i);
        self.at.remove(&out.pod.uid);
        if i < self.items.len() {
            self.at.insert(Arc::clone(&self.items[i].pod.uid), i);
            self.up(i);
            self.down(i);
        }
        out
    }

    fn before(&self, a: usize, b: usize) -> bool {
        (self.order)(&self.items[a], &self.items[b]) == Ordering::Less
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
        for i in [a, b] {
            if let Some(at) = self.at.get_mut(&self.items[i].pod.uid) {
                *at = i;
            }
        }
    }

    fn up(&mut self, mut i: usize) {
        while i > 0 && self.before(i, (i - 1) / 2) {
            self.swap(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
    }

    fn down(&mut self, mut i: usize) {
        loop {
            let mut least = i;
            for child in [2 * i + 1, 2 * i + 2] {
                if child < self.items.len() && self.before(child, least) {
                    least = child;
                }
            }
            if least == i {
                return;
            }
            self.swap(i, least);
            i = least;
        }
    }
}
