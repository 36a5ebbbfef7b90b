-- requeue_dead: makes dead sub-requests wait again, with their old index and with all attempts. Their failures in `out`
-- and their errors are deleted, because an index must have one outcome.
-- Says: ok looked moved tokens | ending | ended summary | gone
--   looked = how many of the ids this call has read: it stops after about 4 MiB of bodies
--   ending: the request is being cancelled or past its deadline
-- @flags grows
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local op = ARGV[2]  -- 32 hex digits, different for every call: a repeat with the same ones moves nothing
local ids = 3  -- ARGV[3...]  dead entries, at most 1,000
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/entries.lua
-- @include lib/dead_letters.lua
local MOVES = 5  -- calls that are remembered

local refused = ids_error(ARGV, ids)
if refused then
  return refused
end
if not string.match(op, "^%x+$") then
  return redis.error_reply("BADARGUMENT requeue_dead wants an op of hex digits")
end
local state, over = load_unfinished()
local moves = redis.call("HGET", request, "moves") or ""  -- op:looked:moved of the last calls, newest first
local before_looked, before_moved = string.match(moves, op .. ":(%d+):(%d+) ")
if before_looked then
  return {"ok", tonumber(before_looked), tonumber(before_moved), state and queued_tokens(state, now_ms(now)) or {}}
end
if over then
  return over
end
now = now_ms(now)
if state.state == "cancelling" or is_overdue(state, now) then
  return {"ending"}
end
local found, met, bytes, i = {}, {}, 0, ids
while i <= #ARGV and bytes < DEAD_BYTES do
  local entry = redis.call("XRANGE", dead, ARGV[i], ARGV[i])[1]
  if entry and not met[entry[1]] then  -- named twice, it is moved once
    met[entry[1]] = true
    local fields = fields_of(entry)
    fields.id, fields.index = entry[1], tonumber(string.match(fields.head, "^%d+"))
    found[#found + 1] = fields
    bytes = bytes + #fields.body
  end
  i = i + 1
end
local looked, moved = i - ids, #found
if moved > 0 then
  state.last_ms = math.max(now, state.last_ms + 1)  -- ids must grow, and these begin again at a low index
  table.sort(found, function(one, other) return one.index < other.index end)
  prove(state, now)
  redis.call("XDEL", dead, "0-0")
end
for _, fields in ipairs(found) do
  redis.call("XADD", stream, string.format("%.0f-%.0f", state.last_ms, fields.index), "b", fields.body)
  redis.call("XDEL", dead, fields.id)
  if fields.out then
    redis.call("XDEL", results, fields.out)
  end
  forget_error(fields.error)
end
if moved > 0 then
  redis.call("INCRBY", counter, moved)
end
state.dead, state.fresh = state.dead - moved, state.fresh + moved
local tokens = mint(state, now)
if moved > 0 then
  moves = table.concat({op, looked, moved}, ":") .. " " .. moves
  save_state(state, "moves", string.match(moves, "^" .. string.rep("%S* ?", MOVES)))
else
  save_state(state)
end
-- Ids that are not in `dead` may have been moved by an earlier call whose reply was lost: its tokens are returned again.
return {"ok", looked, moved, moved < looked and queued_tokens(state, now) or tokens}
