-- The dead sub-requests of a request, which may be requeued.
-- @include lib/entries.lua

-- ------------------------------------------------------------------ texts of errors

-- The texts of the errors of dead sub-requests, in the hash `errors`: each text once, under its digest. `dead` and `out`
-- have the digest. "+<digest>" says how many more dead sub-requests have the text; `bytes` = of all texts.

-- Keeps the text of one more dead sub-request; returns its digest. A text has at most 4,000 bytes (settings.MAX_ERROR).
-- A new text has 500 when those of the request would have more than 64 MiB otherwise.
-- @rare
local function keep_error(text)
  local cut, most_texts, name = "\n[...]\n", 64 * 1024 * 1024, nil
  for _, most in ipairs({4000, 500}) do
    if #text > most then  -- its beginning and its end are kept; no character of UTF-8 is cut
      local head, tail = math.floor(most / 4), #text - math.floor(most * 3 / 4) + #cut + 1
      while head > 0 and string.find(string.sub(text, head + 1, head + 1), "[\128-\191]") do
        head = head - 1
      end
      while string.find(string.sub(text, tail, tail), "[\128-\191]") do
        tail = tail + 1
      end
      text = string.sub(text, 1, head) .. cut .. string.sub(text, tail)
    end
    name = string.sub(redis.sha1hex(text), 1, 16)
    if redis.call("HEXISTS", errors, name) == 1 then
      redis.call("HINCRBY", errors, "+" .. name, 1)
      return name
    elseif tonumber(redis.call("HGET", errors, "bytes") or 0) + #text <= most_texts then
      break
    end
  end
  redis.call("HINCRBY", errors, "bytes", #text)
  redis.call("HSET", errors, name, text)
  return name
end

-- ------------------------------------------------------------------ bury

-- Makes a sub-request dead that has no attempts left or was rejected. Adds its failure to `out`. Keeps it in `dead` for
-- requeue_dead, with its body, its reason and the id of its entry in `out`. Both name the text of the error. Then
-- acknowledges it. The sub-request is pending. A text that a refused command leaves behind is kept until the request goes.
-- `why` = head (of its result), reason (one word), error (text), worker.
local function bury(state, id, why)
  check_acknowledge()
  local found = redis.call("XRANGE", stream, id, id)
  local body = found[1] and found[1][2][2] or ""
  local name = keep_error(why.error)
  local out = redis.call("XADD", results, "*", "w", why.worker, why.head, name)
  local kept = redis.pcall("XADD", dead, "*", "head", why.head, "reason", why.reason, "error", name,
    "worker", why.worker, "out", out, "body", body)
  if type(kept) == "table" then
    undo(kept, {out})
  end
  count_down(state, 1, {out}, kept, id)
  redis.call("XDEL", stream, id)
  redis.call("ZREM", retries, id)
  state.dead = state.dead + 1
end

-- ------------------------------------------------------------------ read

local DEAD_BYTES = 4 * 1024 * 1024  -- of bodies that one call may read

-- Returns a dead entry's fields as a table: see bury.
local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  return fields
end

-- Returns the error about the ids of dead entries from list[first] on, nil if there is none.
local function ids_error(list, first)
  if #list - first + 1 > 1000 then
    return redis.error_reply("BADCOUNT at most 1000 dead entries in one call")
  end
  for i = first, #list do
    if not string.match(list[i], "^%d+%-%d+$") then
      return redis.error_reply("BADARGUMENT ids of dead entries are expected")
    end
  end
end

local function drop_text(name)
  local more = tonumber(redis.call("HGET", errors, "+" .. name) or 0)
  if more > 1 then
    redis.call("HINCRBY", errors, "+" .. name, -1)
  elseif more == 1 then
    redis.call("HDEL", errors, "+" .. name)
  else
    redis.call("HINCRBY", errors, "bytes", -redis.call("HSTRLEN", errors, name))
    redis.call("HDEL", errors, name)
  end
  if redis.call("HLEN", errors) <= 1 then  -- only `bytes`, which is then 0
    redis.call("UNLINK", errors)
  end
end

-- Forgets the text of the error of one dead sub-request: see keep_error. If Redis refuses that, the text is
-- kept until the request goes, because the caller has begun to move or drop the sub-request.
local function forget_error(name)
  pcall(drop_text, name)
end
