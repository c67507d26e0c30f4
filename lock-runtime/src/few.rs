//! A list that nearly always has one element, and then needs no memory of its own.

use std::ops::Deref;

/// One element, or any number of them.
#[derive(Debug, Clone)]
pub(crate) enum Few<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn one(element: T) -> Self {
        Self::One([element])
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        match (elements.next(), elements.next()) {
            (None, _) => Self::Many(Vec::new()),
            (Some(only), None) => Self::one(only),
            (Some(first), Some(second)) => Self::Many([first, second].into_iter().chain(elements).collect()),
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
