-- The open end of a step that is fed by other requests. `handed` in its hash is the cursor: the last entry that is here of
-- each of them, with commas between. No field means that there is none yet.
-- @include lib/core/state.lua
-- @include lib/core/digest_chain.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/mint.lua
local ENTRY = "%d+%-%d+"
local MOST_SOURCES = 20

-- Returns the refusal of arguments that a producer of entries must not send, or nil.
local function feed_error(since, upto, open_ms)
  local other, places = string.gsub(since .. ",", ENTRY .. ",", "")
  local another, after = string.gsub(upto .. ",", ENTRY .. ",", "")
  if not open_ms or other ~= "" or another ~= "" or places ~= after or places > MOST_SOURCES then
    return redis.error_reply("BADARGUMENT two cursors of as many entries and a number for open_ms are expected")
  end
end

-- Returns the state of an open request whose cursor is `since`, how many chunks it has, and until when it may stay open (0 =
-- it has no cursor yet: the next hand-over, even of nothing, leaves one, which shows that the sources were there);
-- or nil and the reply of the script.
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
