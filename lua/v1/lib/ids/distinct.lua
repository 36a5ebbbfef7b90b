-- Sub-requests with ids, of which a request takes each once: the first one stays.
local ID_BYTES = 16
-- The ids outlive the last addition by a day. An open request without one is given up after an hour, if a worker lives.
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
