# The command line with QEMU and a guest image inside: docs/container-image.md.
# The Action does not use it. Both bases are arguments, so that a mirror or a
# digest can be named: --build-arg BASE=debian@sha256:...
ARG BUILD_BASE=golang:1.26.8-bookworm
ARG BASE=debian:bookworm-slim

FROM ${BUILD_BASE} AS build
WORKDIR /src
COPY . .
ARG VERSION=
ENV CGO_ENABLED=0
RUN go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X github.com/brainst0rm/sandbox-redteam/internal/cli.release=${VERSION}" -o /out/bsm-redteam ./cmd/bsm-redteam \
 && go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o /out/bsm-agent ./cmd/bsm-agent

FROM ${BASE}
# QEMU for the architecture of the image alone.
RUN apt-get update \
 && case $(dpkg --print-architecture) in amd64) qemu=qemu-system-x86 ;; arm64) qemu=qemu-system-arm ;; *) exit 1 ;; esac \
 && apt-get install -y --no-install-recommends ca-certificates "$qemu" \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 redteam
COPY LICENSE /usr/share/doc/bsm-redteam/LICENSE
COPY --from=build /out/ /usr/local/bin/
# With the guest's image inside, a run needs no network. The kernel's package stays
# in the cache: a run compares its digest before it trusts the image.
USER redteam
RUN bsm-redteam image build && rm -rf ~/.cache/bsm-redteam/unpacked ~/.cache/bsm-redteam/apt-*
WORKDIR /home/redteam
ENTRYPOINT ["bsm-redteam"]
