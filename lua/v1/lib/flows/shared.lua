-- The values that the steps of a flow share, in the hash of its first step's request: so they live as long as that does.
-- `v:<name>` is a value, `c:<caller>` the last change of a caller, and `shared` has sizes: bytes:names:callers.
local CHANGES = {set = true, add = true, swap = true, drop = true}
local CALLERS, CALLER_MS = 256, 600000  -- a call is repeated for minutes: settings.LEAST_TOMBSTONE_MS

local function sizes_of(text)
  local bytes, names, callers = string.match(text or "0:0:0", "^(%d+):(%d+):(%d+)$")
  return {bytes = tonumber(bytes), names = tonumber(names), callers = tonumber(callers)}
end

-- Returns the word of the reply, and its text. `most`: the sizes that are allowed.
local function change(how, name, value, expected, sizes, most)
  local old = redis.call("HGET", request, "v:" .. name)
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
  local bytes = sizes.bytes + (value and #name + #value or 0) - (old and #name + #old or 0)
  local names = sizes.names + (value and 1 or 0) - (old and 1 or 0)
  if value and (bytes > most.bytes or names > most.names) then
    return "full", ""
  end
  sizes.bytes, sizes.names = bytes, names
  if value then
    redis.call("HSET", request, "v:" .. name, value)
  else
    redis.call("HDEL", request, "v:" .. name)
  end
  return "ok", how == "add" and value or ""
end

-- Removes the callers that have made no change for minutes.
local function drop_callers(sizes, now)
  local all = redis.call("HGETALL", request)
  for i = 1, #all, 2 do
    local moment = string.sub(all[i], 1, 2) == "c:" and string.match(all[i + 1], "^%d+:(%d+):")
    if moment and tonumber(moment) < now - CALLER_MS then
      sizes.callers = sizes.callers - redis.call("HDEL", request, all[i])
    end
  end
end

-- Keeps the last change of a caller, and the sizes.
local function note_caller(caller, text, is_new, sizes, now)
  redis.call("HSET", request, "c:" .. caller, text)
  sizes.callers = sizes.callers + (is_new and 1 or 0)
  if is_new and sizes.callers % CALLERS == 0 then
    drop_callers(sizes, now)
  end
  redis.call("HSET", request, "shared", string.format("%.0f:%.0f:%d", sizes.bytes, sizes.names, sizes.callers))
end
