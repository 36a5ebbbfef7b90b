-- The values that the steps of a flow share, in the hash `shared`.
local CHANGES = {set = true, add = true, swap = true, drop = true, keep = true}
local SHARED_MS = 2678400000  -- 31 days: while the request has no end, its state lives so long after the last change
local CALLERS, CALLER_MS = 256, 600000  -- a call is repeated for minutes: settings.LEAST_TOMBSTONE_MS

-- Returns the word of the reply, and its text.
local function change(how, name, value, expected, most_names, most_bytes)
  local row = redis.call("HMGET", shared, "v:" .. name, "bytes", "names")
  local old = row[1]
  if how == "swap" and (old or "") ~= expected then
    return "other", old or ""
  elseif how == "drop" then
    value = nil
  elseif how == "add" then
    local sum = string.find(old or "0", "^%-?%d+$") and tonumber(old or 0) + tonumber(value)
    if not sum or math.abs(sum) > 9007199254740991 then
      return "kind", old or ""
    end
    value = string.format("%.0f", sum)
  end
  local bytes = (tonumber(row[2]) or 0) + (value and #name + #value or 0) - (old and #name + #old or 0)
  local names = (tonumber(row[3]) or 0) + (value and 1 or 0) - (old and 1 or 0)
  if value and (bytes > most_bytes or names > most_names) then
    return "full", ""
  end
  redis.call("HSET", shared, "bytes", string.format("%.0f", bytes), "names", string.format("%.0f", names))
  if value then
    redis.call("HSET", shared, "v:" .. name, value)
  else
    redis.call("HDEL", shared, "v:" .. name)
  end
  return "ok", how == "add" and value or ""
end

-- Keeps the last change of a caller. If there are many, those go that have made none for minutes.
local function note_caller(caller, text, is_new, now, born)
  redis.call("HSET", shared, "c:" .. caller, text, "born", born)
  local count = is_new and redis.call("HINCRBY", shared, "callers", 1) or 1
  if count % CALLERS ~= 0 then
    return
  end
  local all, left = redis.call("HGETALL", shared), 0
  for i = 1, #all, 2 do
    local moment = string.sub(all[i], 1, 2) == "c:" and string.match(all[i + 1], "^%d+:(%d+):")
    if moment and tonumber(moment) < now - CALLER_MS then
      redis.call("HDEL", shared, all[i])
    elseif moment then
      left = left + 1
    end
  end
  redis.call("HSET", shared, "callers", left)
end

-- Drops the values of an earlier life of the request: a new run may have the id of one that is over.
local function drop_other_life(born)
  if redis.call("HGET", shared, "born") ~= born then
    redis.call("UNLINK", shared)
  end
end

local function expire_with_request(state)
  local ttl = redis.call("PTTL", request)
  if ttl <= 0 then  -- a cancelled one ends with what is held
    ttl = state.state == "cancelling" and math.max(state.retain_ms, CALLER_MS) or SHARED_MS
  end
  redis.call("PEXPIRE", shared, string.format("%d", ttl))
end
