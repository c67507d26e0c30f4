//! The `#[redis_lock]` attribute. Use it through `lock-runtime`, which re-exports it and holds everything
//! that its expansion calls; this crate knows no Redis.
//!
//! Parse, check, expand, one idea a file, and imports run downwards:
//!
//! ```text
//! expand                    the code that takes the place of a function
//! body capture returns      the body as an async block: what moves into it, and what type it is told
//! check resolve             which options go together; the names in a key, looked up in the signature
//! options table duration    how each option is written
//! template place            what a key is made of
//! function boxed bindings   what can be annotated, and the names it brings
//! errors mentions names tokens
//! ```
//!
//! Two rules hold everywhere. Whatever is wrong, the function comes out as it went in, beside its errors, and
//! all errors of one attribute are reported together. And every token that is emitted has a span chosen on
//! purpose: the user's own where the compiler should speak of the user's code, `mixed_site` for our
//! variables, which the user's names then cannot meet.

mod bindings;
mod body;
mod boxed;
mod capture;
mod check;
mod duration;
mod errors;
mod expand;
mod function;
mod mentions;
mod names;
mod options;
mod place;
mod resolve;
mod returns;
mod table;
mod template;
mod tokens;

use proc_macro::TokenStream;

/// # At a glance
///
/// ```text
/// #[redis_lock(key = "order:<order_id>", ttl = "30s")]
/// async fn pay_order(order_id: u64, amount: Money) -> Result<Receipt, AppError> { /* unchanged */ }
/// ```
///
/// A duration is a string that `humantime` reads while the attribute expands (`"30s"`, `"1m 30s"`, `"500ms"`:
/// whole milliseconds, at least one, at most a century), or an expression of type `Duration`, which is
/// checked when it runs (`LockError::InvalidOption`). Every expression is evaluated once, at the first poll,
/// before the body's future exists; only that of `or_else` is evaluated when it is needed.
///
/// | option | meaning | default |
/// |---|---|---|
/// | `key = "order:<order_id>"` | the template of the key, a string literal | required |
/// | `for PAT in EXPR` | one key for each element, all taken in one step or none; the key names what `PAT` binds | one key |
/// | `ttl = "30s"` | the lease: how long the key lives if nobody releases it; at least 10 ms | required |
/// | `wait = "5s"` | how long to wait for a busy lock, then `LockError::Busy` | one attempt |
/// | `renew` | extend the lease while the body runs | off |
/// | `max_hold = "10m"` | stop extending after this long; longer than `ttl`, and only with `renew` | none |
/// | `on_lost = continue` or `cancel` | a lease lost under the body: let it finish, or drop it and return `LockError::Lost` | `continue` |
/// | `hold_at_least = "5s"` | the key stays until it is this old, however the body ended; not longer than `ttl` | off |
/// | `hold_after_ok = "10s"` | after `Ok` (or `Succeeded`) the key stays this much longer; not with `hold_at_least` | off |
/// | `release = wait` or `background` | await the answer to the release, or return at once | `wait` |
/// | `shared` | many readers, or one writer: holds beside others that are `shared` or have `permits` | exclusive |
/// | `permits = N` | at most `N` holders, an expression of type `u32`; not with `shared` | exclusive |
/// | `fenced` | the lease carries a fencing token that grows; with `guard`, and not with `for`, `shared` or `permits` | off |
/// | `guard = name` | a reference to the held `Lease` inside the body | none |
/// | `tag = EXPR` | anything that is `Display`, put into the token and into every event | none |
/// | `manager = EXPR` | which `LockManager`: anything that borrows as one; it is cloned | the global one |
/// | `or_else = EXPR` | what to return without the lock: an `FnOnce(LockError) -> ReturnType` | `FromLockError` |
/// | `crate = PATH` | where the runtime crate is found | `::lock_runtime` |
///
/// A name that is none of these is refused, with the nearest one that is; none is ever ignored.
///
/// # Keys
///
/// | in the template | stands for |
/// |---|---|
/// | `<order_id>` | a parameter, or a name that a parameter's pattern binds; `<type>` for `r#type` |
/// | `<self.region>` | the receiver |
/// | `<REGION>`, `<N>`, `<Self::REGION>`, `<config::REGION>` | a constant, a static, a const generic |
/// | `<req.lines[0].sku>`, `<order.id()>`, `<map["x"]>`, `<a.b(&c, 1)>` | fields, tuple fields, indices and method calls; arguments are literals and places |
/// | `<id:08>`, `<state:?>` | any format spec of `std::fmt` whose numbers are written out |
/// | `<<`, `>>` | `<`, `>` |
/// | `{`, `}` | themselves: hash tags of Redis Cluster, in pairs that are not empty |
///
/// Between two places there is a `:`, `/`, `{` or `}`, so that different values cannot give one key.
///
/// # What can be annotated
///
/// Every `async fn`, and every function that ends in `Box::pin(async move { .. })`, which is what
/// `#[async_trait]` makes of one. There, a name bound by a pattern is out of the key's reach: bind the
/// argument to a plain name.
///
/// Everything else is refused with a sentence that says what to do: `const`, `extern` and other functions
/// without
/// `async`, methods without a body, `impl` blocks and traits. An attribute that makes a function blocking, such as
/// `#[tokio::test]`, stands below this one, and so does `#[axum::debug_handler]`.
///
/// # What stays as it was
///
/// The signature, `Send`-ness (an output that is not `Send` needs `release = background`), and the order in
/// which parameters are dropped. Those that the body or the key names, and those whose name starts with `_`,
/// are dropped before the lock is released; a bare `_` and a parameter that nobody names are dropped after
/// it.
#[proc_macro_attribute]
pub fn redis_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(args.into(), &item.into()).into()
}
