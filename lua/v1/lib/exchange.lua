-- The halves of an exchange, for many requests where one server has all keys.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/lease.lua
-- @include lib/queue.lua
-- @include lib/limit_keys.lua
-- @include lib/rates.lua

-- ------------------------------------------------------------------ token

-- A token as it is popped: "<id>#<k>.<g>", and what token_suffix returns.
local TOKEN = "^([^#]+)#(%d+)%.(%d+)$"
local WITH_SUFFIX = "^([^#]+)#(%d+)%.(%d+)[@%%][^@]+$"

-- Returns the request, permit and generation of a token, or nil.
local function parse_token(token)
  local id, k, g = string.match(token, TOKEN)
  if id then
    return id, k, g
  end
  return string.match(token, WITH_SUFFIX)
end

-- Returns "{queue}".
local function queue_home()
  return string.match(active, "^[^}]*}")
end

-- ------------------------------------------------------------------ follow-ups

-- What the replies of many requests ask to dispatch, where one server has all keys.
local MOST_TOKENS = 1000

-- `keep`: as log_ending takes it.
local function new_follow_ups(keep)
  return {keep = keep, by_lane = {}, ended = {}, left = {}, unlogged = {}}
end

-- Adds the tokens that mint returned for a request.
local function add_tokens(follow_ups, id, minted)
  for i = 1, #minted, 3 do
    local lane, permit, delay = minted[i], minted[i + 1], minted[i + 2]
    if delay == 0 and string.find(permit, "%", 1, true) then
      place_new(queue_home(), lane, id .. "#" .. permit)
    elseif delay > 0 or not KEYS[lanes + lane] then
      local left = follow_ups.left
      left[#left + 1], left[#left + 2], left[#left + 3], left[#left + 4] = id, lane, permit, delay
    else
      local list = follow_ups.by_lane[lane] or {}
      follow_ups.by_lane[lane] = list
      list[#list + 1] = place_token(lane, id .. "#" .. permit)
    end
  end
end

local function add_ending(follow_ups, now, id, summary)
  local is_new, refused = log_ending(now, id, summary, follow_ups.keep)
  if is_new then
    follow_ups.ended[#follow_ups.ended + 1] = id
  elseif refused then
    local unlogged = follow_ups.unlogged
    unlogged[#unlogged + 1], unlogged[#unlogged + 2] = id, summary
  end
end

-- Dispatches what was added since the last call.
local function dispatch_now(follow_ups, now)
  for lane, list in pairs(follow_ups.by_lane) do
    for i = 1, #list, MOST_TOKENS do
      redis.call("LPUSH", KEYS[lanes + lane], unpack(list, i, math.min(i + MOST_TOKENS - 1, #list)))
    end
  end
  if #follow_ups.ended > 0 then
    drop_logged(now, follow_ups.ended)
  end
  follow_ups.by_lane, follow_ups.ended = {}, {}
end

-- ------------------------------------------------------------------ arguments

-- Reads the arguments of exchange.

local function whole(text, most)
  local number = string.find(text or "", "^%d+$") and tonumber(text)
  return number and number <= most and number
end

local MOST_PLACES = 400  -- whose notes are two values each, of one command

-- Returns the places of a call, or nil if they cannot take `want` tokens.
local function read_places(text, want)
  local places = {}
  for place in string.gmatch(text or "", "%S+") do
    places[#places + 1] = place
  end
  if #places == 0 or #places > MOST_PLACES or (#places > 1 and want > #places) then
    return nil
  end
  return places
end

-- Returns request -> size, and the leases to be settled; or nil, nil and the refusal.
local function read_exchange(args, at, measured)
  local size_of, held = {}, {}
  for i = at, at + 2 * measured - 1, 2 do
    size_of[args[i] or ""] = tonumber(args[i + 1])
    local refused = acquire_error(tonumber(args[i + 1]))
    if refused then
      return nil, nil, refused
    end
  end
  at = at + 2 * measured
  while at <= #args do
    local done, others = whole(args[at + 4], 1000), whole(args[at + 5], 1000)
    local last = done and others and at + 5 + 3 * done + 5 * others
    if not last or last > #args then
      return nil, nil, redis.error_reply("BADARGUMENT exchange wants six values of each lease, and what they announce")
    end
    local work, refused = read_work(args, at + 6, done, last)
    if refused then
      return nil, nil, refused
    end
    held[#held + 1] = {id = args[at], k = args[at + 1], fence = args[at + 2], op = args[at + 3], keep = "u", work = work}
    at = last + 1
  end
  return size_of, held
end

-- ------------------------------------------------------------------ settle, acquire

-- The two halves of an exchange: settles one lease, and acquires with one token.

-- id -> state of a request that was settled and goes on; its table is still the truth, because nothing else runs.
local going_on = {}
-- Tokens that this call has shown to their requests.
local claimed = {}

local function settle_one(now, lease, follow_ups)
  select_request("req:{" .. lease.id .. "}")
  going_on[lease.id] = nil  -- an error must leave no state behind
  local state, reply = load_unfinished()
  reply = reply or complete(state, now, read_permit(lease.k), lease, lease.work)
  local word = reply[1]
  going_on[lease.id] = word == "ok" and state or nil
  if word == "ended" then
    add_ending(follow_ups, now, lease.id, reply[2])
  elseif word == "ok" then
    add_tokens(follow_ups, lease.id, reply[3])
  elseif word == "already" then
    add_tokens(follow_ups, lease.id, reply[2])
  end
  return {word}
end

-- Returns how many of the tokens belong to requests with a size: these share the time.
local function count_measured(tokens, size_of)
  local count = 0
  for _, token in ipairs(tokens) do
    if size_of[parse_token(token) or ""] then
      count = count + 1
    end
  end
  return count
end

-- Acquires again with what the request's buckets allow. `rated`: what acquire replied.
-- @rare
local function acquire_rated(state, now, claim, rated)
  local rates = rated[2]
  claim.allowance, claim.wait = take_all(now, rates, rated[3], rated[4] == 1)
  local reply = acquire(state, now, claim)
  local unused = claim.allowance - (reply[1] == "ok" and #reply[5] or 0)
  if unused > 0 then
    refund_all(now, rates, unused)
  end
  return reply
end

-- A lane may have a token twice, because a repeat pushes it again. To the second one of this call `acquire` would reply
-- as to a repeat, with the same lease, which the unit would work on twice.
local function acquire_one(now, token, claim, size_of, follow_ups)
  local id, k, g = parse_token(token)
  if not id then
    return {"gone"}
  end
  if claimed[id .. "#" .. k .. "." .. g] then
    return {"stale"}
  end
  claimed[id .. "#" .. k .. "." .. g] = true
  select_request("req:{" .. id .. "}")
  local state, reply = going_on[id], nil
  if not state then
    state, reply = load_unfinished()
  end
  going_on[id] = nil
  claim.k, claim.g, claim.count = k, g, math.max(1, math.floor((size_of[id] or 1) / claim.share))
  claim.allowance = nil
  reply = reply or acquire(state, now, claim)
  if reply[1] == "rated" then
    reply = acquire_rated(state, now, claim, reply)
  end
  local word = reply[1]
  if word == "ended" then
    add_ending(follow_ups, now, id, reply[2])
  elseif word == "ok" then
    add_tokens(follow_ups, id, reply[6])
    reply[6] = {}
    return reply
  elseif reply[2] then
    add_tokens(follow_ups, id, reply[2])
  end
  if string.find(token, "%", 1, true) and is_useless(word) then
    drop_token(queue_home(), token)
  end
  return {word}
end

-- ------------------------------------------------------------------ pop

-- Pops tokens, and notes in the same script which tokens a unit took.

-- Returns the tokens that a repeat of this call must acquire, or nil if this is its first run. The ops of a unit grow, and
-- a unit has one call at a time. So a call with a smaller op than that of a note is a late copy, and takes nothing. Several
-- places have a word each, whole: one that is no token, or empty, must not shift those of the places behind it.
local function noted_before(places)
  local tokens = nil
  for _, note in ipairs(redis.call("HMGET", taken, unpack(places))) do
    local former, rest = string.match(note or "", "^(%x+) ?(.*)$")
    if former and string.sub(former, 1, 22) == string.sub(op, 1, 22) and former >= op then
      tokens = tokens or {}
      if former == op and #places > 1 then
        tokens[#tokens + 1] = rest
      elseif former == op then
        for token in string.gmatch(rest, "%S+") do
          tokens[#tokens + 1] = token
        end
      end
    end
  end
  while tokens and tokens[#tokens] == "" do  -- of places that took nothing
    tokens[#tokens] = nil
  end
  return tokens
end

-- Notes which tokens each place took: one place all of them, several one each. Beats renew the TTL.
local function note_taken(places, tokens)
  local notes = {}
  for i, place in ipairs(places) do
    notes[2 * i - 1] = place
    notes[2 * i] = op .. " " .. (#places == 1 and table.concat(tokens, " ") or tokens[i] or "")
  end
  if redis.call("HSET", taken, unpack(notes)) > 0 then
    redis.call("PEXPIRE", taken, ttl)
  end
end

-- Returns up to `want` tokens, the most urgent first, and for those popped now the number of their lane.
local function pop_noted(places, want)
  local noted = noted_before(places)
  if noted then
    return noted, {}
  end
  local tokens, lane_of, first = {}, {}, 0
  while #tokens < want do
    local args = {unpack(KEYS, lanes + first)}
    args[#args + 1], args[#args + 2], args[#args + 3] = "RIGHT", "COUNT", want - #tokens
    local popped = redis.pcall("LMPOP", #args - 3, unpack(args))
    if popped and popped.err and #tokens == 0 then  -- a lane that is no list; what was popped before it stays popped
      error(popped.err, 0)
    elseif not popped or popped.err then
      break
    end
    first = tonumber(string.match(popped[1], "(%d+)$"))
    for _, word in ipairs(popped[2]) do
      local token = word
      if word == PLACEHOLDER then
        token = take_turn(string.format("%d", first))
      end
      if token then
        tokens[#tokens + 1], lane_of[#tokens + 1] = token, first
      end
    end
  end
  note_taken(places, tokens)
  return tokens, lane_of
end
