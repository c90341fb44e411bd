-- Pops: wrk … -s pop.lua URL -- BATCH GROUP ACK. ACK 0: auto ack; 1: one ack request for each message.
-- Prints the number of delivered messages.
local all = {}
function setup(thread)
   table.insert(all, thread)
end

function init(args)
   batch, group, acks = tonumber(args[1]), args[2], args[3] == "1"
   delivered, acked, bad = 0, 0, 0
   waiting = {}
   path = string.format("/api/v1/pop/queue/http?batch=%d&consumerGroup=%s%s", batch, group, acks and "" or "&autoAck=true")
end

function request()
   local ack = table.remove(waiting)
   if ack then
      return wrk.format("POST", "/api/v1/ack", { ["Content-Type"] = "application/json" }, ack)
   end
   return wrk.format("GET", path)
end

function response(status, headers, body)
   if status ~= 200 then bad = bad + 1 return end
   if body:sub(1, 1) == "[" then
      if body:find('"success":true', 1, true) then acked = acked + 1 else bad = bad + 1 end
      return
   end
   local at = body:find('"messages":[', 1, true)
   for id, partition, lease in body:gmatch('"transactionId":"([^"]+)".-"partitionId":"([^"]+)","leaseId":"([^"]*)"', at) do
      delivered = delivered + 1
      if acks then
         table.insert(waiting, string.format('{"transactionId":"%s","partitionId":"%s","leaseId":"%s","consumerGroup":"%s"}',
                                             id, partition, lease, group))
      end
   end
end

function done()
   local total, confirmed, wrong = 0, 0, 0
   for _, thread in ipairs(all) do
      total = total + thread:get("delivered")
      confirmed = confirmed + thread:get("acked")
      wrong = wrong + thread:get("bad")
   end
   print(string.format("delivered %d acked %d bad %d", total, confirmed, wrong))
end
