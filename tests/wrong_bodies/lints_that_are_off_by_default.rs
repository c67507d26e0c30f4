#![warn(
    future_incompatible,
    keyword_idents,
    let_underscore,
    nonstandard_style,
    rust_2018_idioms,
    rust_2021_compatibility,
    rust_2024_compatibility,
    unused
)]
#![warn(
    ambiguous_negative_literals,
    closure_returning_async_block,
    deprecated_in_future,
    explicit_outlives_requirements,
    ffi_unwind_calls,
    impl_trait_redundant_captures,
    meta_variable_misuse,
    missing_abi,
    missing_copy_implementations,
    missing_debug_implementations,
    missing_docs,
    non_ascii_idents,
    redundant_imports,
    redundant_lifetimes,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unit_bindings,
    unnameable_types,
    unreachable_pub,
    unsafe_code,
    unused_crate_dependencies,
    unused_import_braces,
    unused_lifetimes,
    unused_macro_rules,
    unused_qualifications,
    unused_results,
    variant_size_differences
)]

use lock_runtime::LockError;

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
pub async fn plain(id: u64) -> std::result::Result<u64, LockError> {
    let list = std::sync::Mutex::new(vec![id]);
    let unit = list.lock().unwrap().push(1);
    let _ = list.lock();
    std::mem::replace(&mut *list.lock().unwrap(), Vec::new());
    let len = list.lock().unwrap().len() as u64;
    Ok(len)
}

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", wait = "1s", renew, or_else = |_| None))]
pub async fn with_options<'a>(id: u64, mut list: Vec<&'a str>, (mut a, _b): (u8, u8)) -> Option<&'a str> {
    a += u8::from(id == 1);
    let first = list.pop()?;
    if let Some(second) = list.pop() { Some(second) } else { Some(first) }
}

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| ()))]
pub async fn unit(id: u64, größe: &u64) {
    let closure = || async { *größe as u64 + id };
    closure().await;
}

#[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s", or_else = |_| 0..0))]
pub async fn opaque(id: u64) -> impl Iterator<Item = u64> {
    0..id
}

struct S;

impl S {
    #[cfg_attr(locked, lock_runtime::redis_lock(key = "o:<id>", ttl = "30s"))]
    async fn method(&mut self, id: u64) -> Result<&mut Self, LockError> {
        let _ = id;
        Ok(self)
    }
}
