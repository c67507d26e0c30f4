//! As much of Redis' protocol as a proxy needs: where a request or a reply ends.

/// The bytes are no Redis protocol.
#[derive(Debug)]
pub(crate) struct Malformed;

/// A request, and how many bytes it takes.
pub(crate) struct Request {
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) length: usize,
}

/// The request at the start of `bytes`; `None` if it is not complete yet.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<Request>, Malformed> {
    let Some(&first) = bytes.first() else { return Ok(None) };
    if first != b'*' {
        return Err(Malformed);
    }
    let Some((count, mut at)) = header(bytes, 0)? else { return Ok(None) };
    let mut args = Vec::new();
    for _ in 0..count {
        if bytes.get(at).is_some_and(|&kind| kind != b'$') {
            return Err(Malformed);
        }
        let Some((length, start)) = header(bytes, at)? else { return Ok(None) };
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let end = start + length;
        if bytes.len() < end + 2 {
            return Ok(None);
        }
        args.push(bytes[start..end].to_vec());
        at = end + 2;
    }
    Ok(Some(Request { args, length: at }))
}

/// The length of the reply at the start of `bytes`; `None` if it is not complete yet.
pub(crate) fn reply(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    end_of_value(bytes, 0)
}

/// Whether a reply is one that no request asked for.
pub(crate) fn is_push(reply: &[u8]) -> bool {
    reply.first() == Some(&b'>')
}

fn end_of_value(bytes: &[u8], at: usize) -> Result<Option<usize>, Malformed> {
    let Some(&kind) = bytes.get(at) else { return Ok(None) };
    let children = match kind {
        b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => return Ok(line(bytes, at).map(|(_, next)| next)),
        b'$' | b'!' | b'=' => {
            let Some((length, start)) = header(bytes, at)? else { return Ok(None) };
            // A length of -1 is RESP2's nil, which has no body.
            let end = usize::try_from(length).map_or(start, |length| start + length + 2);
            return Ok((bytes.len() >= end).then_some(end));
        }
        b'*' | b'~' | b'>' => 1,
        // Attributes come before the value that they belong to.
        b'%' | b'|' => 2,
        _ => return Err(Malformed),
    };
    let Some((count, mut next)) = header(bytes, at)? else { return Ok(None) };
    let count = count.max(0) * children + i64::from(kind == b'|');
    for _ in 0..count {
        match end_of_value(bytes, next)? {
            Some(end) => next = end,
            None => return Ok(None),
        }
    }
    Ok(Some(next))
}

fn header(bytes: &[u8], at: usize) -> Result<Option<(i64, usize)>, Malformed> {
    let Some((line, next)) = line(bytes, at) else { return Ok(None) };
    let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse().ok());
    number.map(|number| Some((number, next))).ok_or(Malformed)
}

fn line(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&rest[..end], at + end + 2))
}
