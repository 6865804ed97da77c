#!/bin/sh
# A consumer in any language: a program reads the payload from stdin, and its exit code decides.
#
#   yirangmq publish --queue invoices '{"number": 17}'
#   yirangmq consume --queue invoices --raw --exec examples/legacy.sh --until-empty
#
# It writes each payload to a file with the message's id, so that a redelivered message writes the same file again.

folder=${INVOICES:-./invoices}
file=$folder/$YIRANGMQ_MESSAGE_ID.json

mkdir -p "$folder" || exit 75              # 75: not now, try again later
cat > "$file.part" || exit 75

if ! grep -q '"number"' "$file.part"; then
    echo "an invoice without a number" >&2 # the end of stderr stands with the dead letter
    rm -f "$file.part"
    exit 65                                # 65: this will never work
fi

mv "$file.part" "$file"                    # 0: done; any other code: failed, again as the policy says
