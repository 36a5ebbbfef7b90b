-- How the steps of a flow are connected.
-- @include lib/state.lua
-- @include lib/permits.lua

-- ------------------------------------------------------------------ open end

-- The open end of a step that other requests feed. The field `handed` of its hash is the cursor: the last entry of each of
-- them that is here, with commas between. If there is no field, the step has no cursor yet.
local ENTRY = "%d+%-%d+"
local MOST_SOURCES = 50

-- Returns the refusal of arguments that a producer of entries must not send, or nil.
local function feed_error(since, upto, open_ms)
  local other, places = string.gsub(since .. ",", ENTRY .. ",", "")
  local another, after = string.gsub(upto .. ",", ENTRY .. ",", "")
  if not open_ms or other ~= "" or another ~= "" or places ~= after or places > MOST_SOURCES then
    return redis.error_reply("BADARGUMENT two cursors of as many entries and a number for open_ms are expected")
  end
end

-- Returns the state of an open request whose cursor is `since`, how many chunks it has, and until when it may stay open. 0 =
-- it has no cursor yet: the next hand-over, even of nothing, writes one, which shows that the sources were there. If the
-- request or its cursor differs, returns nil and the reply of the script.
local function open_end(since, now)
  local state, over = load_unfinished()
  if over then
    return nil, over
  elseif state.open == 0 then
    return nil, {"closed"}
  elseif state.state == "cancelling" then
    return nil, {"cancelling", summary(state)}
  end
  local row, chunks = redis.call("HMGET", request, "handed", "open_until"), chain_of()
  local cursor = row[1] or string.gsub(since, ENTRY, "0-0")
  if cursor ~= since then
    return nil, {"moved", cursor, queued_tokens(state, now), chunks}
  end
  return state, chunks, row[1] and tonumber(row[2]) or 0
end

-- ------------------------------------------------------------------ indexes handed over

-- The bits of the string `handed` say which indexes of the source a step has. The cursor is not enough, because a failover of
-- the source's slot may take back entries, whose sub-requests then run again.
local HANDED_MS = "2678400000"  -- 31 days: longer than any queue is without a worker
local MOST_INDEX = 4294967295  -- a string of Redis has no more bits

local function is_handed(index)
  return redis.call("GETBIT", handed, index) == 1
end

-- Writes one bit unchanged, so that Redis refuses, if at all, before anything is added.
local function prove_handed(index)
  if index then
    redis.call("SETBIT", handed, index, redis.call("GETBIT", handed, index))
  end
end

local function note_handed(indexes)
  for _, index in ipairs(indexes) do
    redis.call("SETBIT", handed, index, 1)
  end
  if #indexes > 0 then
    redis.call("PEXPIRE", handed, HANDED_MS)
  end
end

-- ------------------------------------------------------------------ parts of bodies

-- The parts of bodies that wait for others, in the hash `joins`. A part is named child:index.
local PARTS_MS = "2678400000"  -- 31 days: longer than any queue is without a worker
local MOST_PARTS, MOST_WIDTH = 2000, 100

local function parts_error(width, list, first)
  if not width or width < 1 or width > MOST_WIDTH or (#list - first) % 2 == 0 or #list >= first + MOST_PARTS then
    return redis.error_reply("BADARGUMENT a width of 1 to 100 and at most 1000 pairs of a name and a part are expected")
  end
  for i = first, #list, 2 do
    local child, index = string.match(list[i], "^(%d+):(%d+)$")
    if not child or tonumber(child) < 1 or tonumber(child) > width or tonumber(index) > MOST_INDEX then
      return redis.error_reply("BADARGUMENT the names of parts are child:index")
    end
  end
end

-- Returns the bodies that list[first...] completes, the changes of `joins` (name -> part, false = delete it), and the indexes
-- of the bodies. Writes nothing.
local function put_together(width, list, first, wrap)
  local bodies, kept, made, indexes = {}, {}, {}, {}
  for i = first, #list, 2 do
    local child, index = string.match(list[i], "^(%d+):(%d+)$")
    if not made[index] and not is_handed(index) then  -- else its body was made without it
      local names = {}
      for one = 1, width do
        names[one] = one .. ":" .. index
      end
      local row, count, own = redis.call("HMGET", joins, unpack(names)), 0, tonumber(child)
      for one, name in ipairs(names) do
        if kept[name] ~= nil then
          row[one] = kept[name]
        end
        if one == own then
          row[one] = list[i + 1]
        end
        count = count + (row[one] and 1 or 0)
      end
      if count == width then
        made[index] = true
        for _, name in ipairs(names) do
          kept[name] = false
        end
        bodies[#bodies + 1] = wrap[1] .. table.concat(row, wrap[2], 1, width) .. wrap[3]
        indexes[#indexes + 1] = index
      else
        kept[names[own]] = list[i + 1]
      end
    end
  end
  return bodies, kept, indexes
end

local function keep_parts(kept)
  for name, part in pairs(kept) do
    if part then
      redis.call("HSET", joins, name, part)
    else
      redis.call("HDEL", joins, name)
    end
  end
  redis.call("PEXPIRE", joins, PARTS_MS)
end

-- ------------------------------------------------------------------ shared values

-- The values that the steps of a flow share. The hash of the first step's request has them, so they live as long as it does.
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
