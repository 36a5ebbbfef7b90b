-- How an open request gets more sub-requests.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/entries.lua

-- ------------------------------------------------------------------ chunk

-- Adds list[first...] to an open request, and writes the fields and values `...` of its hash. Returns the new tokens.
local function add_chunk(state, now, list, first, ...)
  prove(state, now, state.state)
  redis.call("INCRBY", counter, add_entries(state, now, list, first, #list))
  redis.call("HSET", request, ...)
  local tokens = mint(state, now)
  save_state(state)
  return tokens
end

-- ------------------------------------------------------------------ rows

-- Adds sub-requests to an open request beside the numbered chunks of its producer.
local function grow(state, now, open_ms, bodies, is_sealed)
  prove(state, now, state.state)
  local count = add_entries(state, now, bodies, 1, #bodies)
  redis.call("INCRBY", counter, is_sealed and count - 1 or count)
  redis.call("HSET", request, "open_until", now + open_ms)
  return count
end

-- Ends a script that added rows: seals the request if that is wanted, and returns the tokens that are due now. The added
-- rows are not done yet, so the request never ends here.
local function grown(state, now, is_sealed)
  state.open = is_sealed and 0 or state.open
  local tokens = mint(state, now)
  save_state(state)
  if is_sealed and state.state ~= "cancelling" then
    redis.call("HDEL", request, "open_until")
  end
  return tokens
end

-- Returns the early reply of a script: a refusal if the request cannot take the rows in `wanted`, or "nothing added" if
-- the request is over and `wanted` is empty. Nil = go on.
local function answer_early(state, over, wanted)
  if #wanted > 0 and (over or state.open == 0) then
    return over or {"closed"}
  end
  return over and {"ok", {}, 0, 0}
end

-- Returns the reply of a script that added `wanted`. A repeat gets all tokens that are queued, because the reply
-- that named them may be lost.
local function answer_grown(state, now, wanted)
  local tokens = grown(state, now, false)
  return {"ok", #wanted > 0 and tokens or queued_tokens(state, now), #wanted, state.fresh}
end

-- ------------------------------------------------------------------ what results show of rows

-- Keeps the key of each row that the next grow() adds, and with `keep` its body, for readers of results. They are beside
-- the texts of errors, because they must stay as long as the results: "k<n>" has the keys from index 1,000 n on, each as
-- the rest of its index and its length, of two bytes each, and the key; "b<index>" is a body. The last key of an index counts.
-- The request's field `keyed` shows a reader that there are keys.
local KEYS_TOGETHER = 1000

local function keep_rows(state, own, bodies, keep)
  if own then
    redis.call("HSET", request, "keyed", 1)
  end
  local i = 1
  while own and i <= #own do
    local n = math.floor((state.total + i - 1) / KEYS_TOGETHER)
    local parts, field = {}, string.format("k%d", n)
    parts[1] = redis.call("HGET", errors, field) or ""
    for index = state.total + i - 1, math.min(state.total + #own, (n + 1) * KEYS_TOGETHER) - 1 do
      parts[#parts + 1] = struct.pack("<I2I2", index % KEYS_TOGETHER, #own[i])
      parts[#parts + 1] = own[i]
      i = i + 1
    end
    redis.call("HSET", errors, field, table.concat(parts))
  end
  for at, body in ipairs(keep == "1" and bodies or {}) do
    redis.call("HSET", errors, string.format("b%d", state.total + at - 1), body)
  end
end

-- ------------------------------------------------------------------ packed rows

-- Staged sub-requests come packed, a chunk in one string: their number, the length of each, then their bodies. All
-- numbers are little-endian and have four bytes. The producer keeps its rows in such columns, so a row costs no
-- work of its own before it is in the stream.
--
-- Returns the texts that are packed behind the first `from` bytes, and where they end; nil if the text is not packed like this.
local function unpacked_from(text, from)
  local count = #text >= from + 4 and struct.unpack("<I4", text, from + 1) or -1
  if count < 0 or count > MAX_ENTRIES or #text < from + 4 + 4 * count then
    return nil
  end
  local texts, at = {}, from + 4 + 4 * count
  for i = 1, count do
    local length = struct.unpack("<I4", text, from + 4 * i + 1)
    texts[i] = string.sub(text, at + 1, at + length)
    at = at + length
  end
  return texts, at
end

-- Returns the bodies of a chunk and the keys of its rows, which may follow packed in the same way; nil for other text.
local function unpacked(text)
  local bodies, at = unpacked_from(text, 0)
  local own
  if bodies and at < #text then
    own, at = unpacked_from(text, at)
    bodies = own and #own == #bodies and bodies
  end
  if not bodies or at ~= #text then
    return nil
  end
  return bodies, own
end

local function bad_packing()
  return redis.error_reply("BADCHUNK at most " .. MAX_ENTRIES .. " packed sub-requests are expected: count, lengths, bodies")
end
