-- Whether an id is new: that of a request, or that of a sub-request inside one.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/ahead.lua

-- ------------------------------------------------------------------ sub-requests

-- Sub-requests with ids, of which a request takes each once: the first one stays.
local ID_BYTES = 16
-- The ids outlive the last addition by a day. If a worker lives, an open request is given up an hour after its last addition.
local IDS_MS = "86400000"

-- Reads the ids of a chunk, which follow its sub-requests in one text, into `chunk.own`. `chunk`: list[first..last]. Returns
-- the refusal of other ids, or nil.
local function read_ids(chunk)
  local text, count = chunk.list[chunk.last], chunk.last - chunk.first
  if #text ~= ID_BYTES * count then
    return redis.error_reply("BADARGUMENT one text with an id of 16 bytes for each sub-request is expected behind them")
  end
  chunk.own, chunk.last = {}, chunk.last - 1
  for i = 1, count do
    chunk.own[i] = string.sub(text, ID_BYTES * (i - 1) + 1, ID_BYTES * i)
  end
end

-- Returns the sub-requests of list[first...] whose ids, own[1...], are new, and these ids. `ids`: the set of those that the
-- request has; nil = it has none yet.
local function new_ones(ids, own, list, first)
  local known = ids and #own > 0 and redis.call("SMISMEMBER", ids, unpack(own)) or {}
  local wanted, new, seen = {}, {}, {}
  for i, id in ipairs(own) do
    if not seen[id] and known[i] ~= 1 then
      wanted[#wanted + 1], new[#new + 1] = list[first + i - 1], id
    end
    seen[id] = true
  end
  return wanted, new
end

-- Writes new ids, which stay for `ttl` ms, and returns what add(...) returns. If add is refused, the ids are removed,
-- because a repeat would take them for added.
local function with_ids(ids, new, ttl, add, ...)
  redis.call("PEXPIRE", ids, ttl)  -- first, because nothing is written if this is refused
  if #new > 0 then
    redis.call("SADD", ids, unpack(new))
    redis.call("PEXPIRE", ids, ttl)
  end
  local is_added, found = pcall(add, ...)
  if is_added then
    return found
  elseif #new > 0 then
    redis.call("SREM", ids, unpack(new))
  end
  error(found, 0)
end

local function drop_ids(ids)
  redis.call("UNLINK", ids)
end

-- Returns how many sub-requests of the request were left out so far.
local function left_out()
  return tonumber(redis.call("HGET", request, "left_out") or 0)
end

-- ------------------------------------------------------------------ requests

-- Finds the request that an id has, and whether a new one may follow it.

-- Returns what distinguishes an ending from all others of its id: `born`, and how often the request was reopened, if it was.
local function ending_of(state)
  local born = string.format("%d", state.born)
  return state.reopened and born .. "|" .. state.reopened or born
end

-- Returns true if a new life may replace the id's last one, which must have ended: it was abandoned; or, with `unique`, it
-- was cancelled or began at least `unique` ms ago. The new life needs higher fences, and a later `born`, because the log
-- distinguishes endings by `born`. If the clock went back, `born` may lie far ahead: then `began` is when the life began.
local function may_follow(state, new, now)
  if not is_ended(state) then
    return false
  end
  local window = string.match(new.extras.unique or "", "^%d+")
  if window and state.state == "cancelled" then
    return true
  elseif window then
    local began = tonumber(redis.call("HGET", request, "began") or state.born)
    if now >= began + tonumber(window) or is_void(began, now, 0) then
      return true
    end
  end
  return state.state == "cancelled" and redis.call("HEXISTS", request, "abandoned") == 1
end

-- Returns the state of the id's request if a new life may follow it; nil and the reply of enqueue if none may; nil if the id
-- has no request. A request of another queue is never replaced, whatever became of it, because its results would go, too.
-- @rare
local function former_life(new, now, over)
  local state = load_state()
  if not state then
    return nil
  end
  local digest, home = unpack(redis.call("HMGET", request, "digest", "queue"))
  if home ~= new.queue then
    return nil, {"conflict", summary(state)}
  end
  local is_repeat = digest == new.digest
  if not (is_repeat and new.extras.unique) and may_follow(state, new, now) then
    if ending_of(state) ~= over then
      return nil, {"abandoned", summary(state)}
    end
    return state
  elseif not is_repeat then
    return nil, {new.extras.unique and "kept" or "conflict", summary(state)}
  end
  local chunks, chain = chain_of()
  return nil, {"exists", chunks, chain, state.open, summary(state), queued_tokens(state, now), new.own and left_out()}
end
