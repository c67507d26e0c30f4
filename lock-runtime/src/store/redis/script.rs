//! The scripts: what must happen in one step on the server.
//!
//! There are two families, one for each way a key is held: by one holder as a plain string whose value is the token,
//! and by several as a sorted set of token → expiry. Both work on any number of keys, all or none of them. What a
//! script reads of a key also makes the server tell of the key's next change, if tracking is on.

use std::sync::LazyLock;

use redis::Cmd;

use super::super::{Claim, Mode};

/// A script with its SHA-1, which is what goes over the wire once the server knows the text.
pub(super) struct Script(LazyLock<redis::Script>, &'static str);

macro_rules! script {
    ($text:expr) => {
        Script(LazyLock::new(|| redis::Script::new($text)), $text)
    };
}

/// What can be done with keys that are held in one way.
pub(super) struct Family {
    /// ARGV: token, ttl in ms, limit or number of locks, fence's expiry in ms. Answers `{0, fence}` for a grant, else
    /// the index of a key that is held, and in how many ms it is worth asking again (negative: not known). A caller's
    /// own token is a grant: an earlier sending may have been carried out. It shortens nothing: an earlier sending may
    /// also arrive late, when the lease was extended.
    pub(super) acquire: Script,
    /// ARGV: token, for how many ms the key is kept. Answers the indices of the keys that were not the token's.
    pub(super) release: Script,
    /// ARGV: token, ttl in ms. Answers 1 if every key was the token's, and now lives that long at least.
    pub(super) extend: Script,
    /// ARGV: token. Answers 1 if every key is the token's.
    pub(super) look: Script,
}

/// Deletes the key only while it carries the caller's token.
pub(super) static RELEASE: Script = script!(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0"
);

// What can fail stands before the first change: an error ends a script where it is, and undoes nothing.
// By `pcall` elsewhere: a key of another type is someone else's, and must not keep the others from their turn.
static EXCLUSIVE: Family = Family {
    acquire: script!(
        "local locks = tonumber(ARGV[3])
local mine = false
for i = 1, locks do
  local holder = redis.pcall('GET', KEYS[i])
  if holder == ARGV[1] then
    mine = true
  elseif holder then
    return {i, redis.call('PTTL', KEYS[i])}
  end
end
local fence = 0
if #KEYS > locks then
  local counter = KEYS[#KEYS]
  fence = tonumber(redis.call('GET', counter) or 0)
  if not mine or fence == 0 then
    local time = redis.call('TIME')
    fence = math.max(fence + 1, time[1] * 1000000 + time[2])
    redis.call('SET', counter, string.format('%.0f', fence), 'PX', ARGV[4])
  end
end
for i = 1, locks do
  if not mine or redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
  end
end
return {0, fence}"
    ),
    release: script!(
        "local others = {}
for i, key in ipairs(KEYS) do
  if redis.pcall('GET', key) ~= ARGV[1] then
    others[#others + 1] = i
  elseif ARGV[2] == '0' then
    redis.call('DEL', key)
  else
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return others"
    ),
    extend: script!(
        "for _, key in ipairs(KEYS) do
  if redis.pcall('GET', key) ~= ARGV[1] then
    return 0
  end
end
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return 1"
    ),
    look: script!(
        "local mine = 1
for _, key in ipairs(KEYS) do
  if redis.pcall('GET', key) ~= ARGV[1] then
    mine = 0
  end
end
return mine"
    ),
};

// The clock is the server's. A sorted set without an expiry is none of ours. The key's own expiry is that of its longest-lived holder.
static SEVERAL: Family = Family {
    acquire: script!(
        "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[3])
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' and redis.call('PTTL', key) >= 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    if limit > 0 and not redis.call('ZSCORE', key, ARGV[1]) and redis.call('ZCARD', key) >= limit then
      return {i, redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] - now}
    end
  elseif kind ~= 'none' then
    return {i, redis.call('PTTL', key)}
  end
end
for _, key in ipairs(KEYS) do
  local ends = redis.call('ZSCORE', key, ARGV[1])
  if not ends or tonumber(ends) < now + ARGV[2] then
    redis.call('ZADD', key, now + ARGV[2], ARGV[1])
  end
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  local expires = redis.pcall('PEXPIREAT', key, last)
  if type(expires) == 'table' then
    redis.call('ZREM', key, ARGV[1])
    return expires
  end
end
return {0, 0}"
    ),
    release: script!(
        "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others = {}
for i, key in ipairs(KEYS) do
  local ends = redis.pcall('ZSCORE', key, ARGV[1])
  if type(ends) ~= 'string' or tonumber(ends) <= now then
    others[#others + 1] = i
  elseif ARGV[2] == '0' then
    redis.call('ZREM', key, ARGV[1])
  else
    redis.call('ZADD', key, now + ARGV[2], ARGV[1])
  end
  if type(ends) == 'string' then
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if last then
      redis.call('PEXPIREAT', key, last)
    end
  end
end
return others"
    ),
    extend: script!(
        "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, key in ipairs(KEYS) do
  local ends = redis.pcall('ZSCORE', key, ARGV[1])
  if type(ends) ~= 'string' or tonumber(ends) <= now then
    return 0
  end
end
for _, key in ipairs(KEYS) do
  if tonumber(redis.call('ZSCORE', key, ARGV[1])) < now + ARGV[2] then
    redis.call('ZADD', key, now + ARGV[2], ARGV[1])
    redis.call('PEXPIREAT', key, redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
  end
end
return 1"
    ),
    look: script!(
        "local mine = 1
for _, key in ipairs(KEYS) do
  if type(redis.pcall('ZSCORE', key, ARGV[1])) ~= 'string' then
    mine = 0
  end
end
return mine"
    ),
};

/// The scripts that are loaded when a connection is made.
pub(super) fn at_connect() -> impl ExactSizeIterator<Item = &'static Script> {
    [
        &RELEASE,
        &EXCLUSIVE.acquire,
        &EXCLUSIVE.release,
        &EXCLUSIVE.extend,
        &EXCLUSIVE.look,
        &SEVERAL.acquire,
        &SEVERAL.release,
        &SEVERAL.extend,
        &SEVERAL.look,
    ]
    .into_iter()
}

impl Family {
    pub(super) fn of(claim: &Claim) -> &'static Self {
        match claim.mode {
            Mode::Exclusive => &EXCLUSIVE,
            Mode::Shared | Mode::Permits(_) => &SEVERAL,
        }
    }
}

impl Script {
    pub(super) fn hash(&self) -> &str {
        self.0.get_hash()
    }

    pub(super) fn text(&self) -> &'static str {
        self.1
    }

    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.1);
        cmd
    }
}
