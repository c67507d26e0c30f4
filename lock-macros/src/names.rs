//! The name that was probably meant.

/// The candidate nearest to `wanted`, if one is near enough to be worth suggesting.
pub(crate) fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter_map(|candidate| Some((cost(wanted, candidate)?, candidate)))
        .min_by_key(|(cost, _)| *cost)
        .map(|(_, candidate)| candidate)
}

/// How far `candidate` is from `wanted`; `None` when a reader would not take one for the other.
fn cost(wanted: &str, candidate: &str) -> Option<usize> {
    let (wanted, candidate) = (wanted.to_lowercase(), candidate.to_lowercase());
    let longer = wanted.chars().count().max(candidate.chars().count());
    let distance = distance(&wanted, &candidate);
    if distance <= longer.div_ceil(3) {
        return Some(distance);
    }
    // `id` for `order_id`: many letters apart, yet plainly what was meant.
    let is_word_of = |part: &str, whole: &str| whole.split('_').any(|word| word == part);
    (is_word_of(&wanted, &candidate) || is_word_of(&candidate, &wanted)).then_some(longer + distance)
}

/// Edits (insert, delete, replace, swap two neighbours) that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &left) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &right) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(left != right);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && left == b[j - 1] && a[i - 1] == right {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// `` `a`, `b` and `c` ``, for messages.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("ttl", "ttl"), 0);
        assert_eq!(distance("tll", "ttl"), 1);
        assert_eq!(distance("oder_id", "order_id"), 1);
        assert_eq!(distance("order_di", "order_id"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        let names = ["order_id", "amount", "self"];
        assert_eq!(nearest("oder_id", names), Some("order_id"));
        assert_eq!(nearest("amonut", names), Some("amount"));
        assert_eq!(nearest("id", names), Some("order_id"));
        assert_eq!(nearest("ORDER_ID", names), Some("order_id"));
        assert_eq!(nearest("customer", names), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(list([]), "");
        assert_eq!(list(["a"]), "`a`");
        assert_eq!(list(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
