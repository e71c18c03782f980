# The image holds one static binary, and runs it as a user without rights.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /quotad ./cmd/quotad

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /quotad /quotad
USER nonroot
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["/quotad", "healthcheck", "--url", "http://127.0.0.1:8080"]
ENTRYPOINT ["/quotad"]
CMD ["serve", "--listen", "0.0.0.0:8080"]
